// The collectives of a group of ranks, as one rank sees them. Rows and bytes; no models.
//
// Invariants:
// 1. All ranks of a group make the same calls, in the same order, with the same tag, kind and
//    sizes. Every call verifies this; sizes may be zero.
// 2. GatherRows and CollectRows on one buffer alternate with some other collective of the same
//    group before the buffer is written again, so one meeting per collective is enough when ranks
//    share memory.
// 3. After a failed collective every later one on every rank of every group of the world fails with
//    the same status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// Memory of equal size on every rank of a group, allocated by a collective call.
class SymmetricBuffer {
 public:
  virtual ~SymmetricBuffer() = default;
  // This rank's view; for a gathered buffer with shared memory all ranks' views are one.
  virtual std::byte* local() = 0;
  virtual size_t size() const = 0;
};

// One piece per rank of each row; collected rows are read through From().
class PieceBuffer {
 public:
  virtual ~PieceBuffer() = default;
  // This rank's pieces of all rows: [rows][row_bytes(rank)].
  virtual std::byte* local() = 0;
  // After CollectRows: the pieces that rank `peer` made of this rank's own rows, first own row
  // first, densely packed with the peer's row_bytes. Valid until the next collective but one.
  virtual const std::byte* From(int peer) const = 0;
};

// What a collective is for, the same on all ranks; `index` tells repeated ones apart (layer, draft
// pass). `name` is a string literal, or lives as long as the World: reports of failures read it
// later.
struct CollectiveTag {
  const char* name;
  int index = 0;
};

// The errors of all collectives: kInternal if ranks disagree, naming both calls; kDeadlineExceeded,
// naming the late ranks; or the status of World::Abort. Contents are then undefined. What breaks
// the allocated bounds is a CHECK. Used by one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // True if all ranks of the group read and write one memory (one KV pool, one gathered buffer).
  virtual bool shares_memory() const = 0;

  // Collective allocations, at start only. Zeroed, aligned to 64 bytes.
  virtual std::unique_ptr<SymmetricBuffer> AllocateGathered(size_t bytes) = 0;
  // max_piece_bytes[r] = the most bytes that rank r's pieces of all rows take; max_own_rows = the
  // most rows one rank can own.
  virtual std::unique_ptr<PieceBuffer> AllocatePieces(std::span<const size_t> max_piece_bytes,
                                                      int64_t max_own_rows,
                                                      std::span<const size_t> max_row_bytes) = 0;

  // Rank r has written rows [row_begin[r], row_begin[r+1]) of `buffer` (row i at byte i * row_bytes
  // of local()); afterwards every rank reads all rows. row_begin has size()+1 entries.
  virtual Status GatherRows(CollectiveTag tag, SymmetricBuffer& buffer, size_t row_bytes,
                            const int32_t* row_begin) = 0;

  // Every rank r has written its piece of every row, row_bytes[r] each, into pieces.local();
  // afterwards the owner of a row, rank q with row_begin[q] <= row < row_begin[q+1], reads all
  // pieces of it by pieces.From(r).
  virtual Status CollectRows(CollectiveTag tag, PieceBuffer& pieces,
                             std::span<const size_t> row_bytes, const int32_t* row_begin) = 0;

  // all[r] = rank r's record; `record_bytes` each, `all` holds size() of them.
  virtual Status AllGather(CollectiveTag tag, const void* record, size_t record_bytes,
                           void* all) = 0;

  // Every rank's `message` becomes a copy of the root's.
  virtual Status Broadcast(CollectiveTag tag, int root, std::vector<std::byte>& message) = 0;
};

// One entry of a trace of collectives: what a test compares between ranks.
struct CollectiveRecord {
  uint64_t sequence = 0;  // counts the collectives of the rank in this group
  std::string tag;        // "name/index"
  char kind = 0;          // 'g' gather rows, 'c' collect rows, 'a' all-gather, 'b' broadcast
  // Of row bytes and of all row_begin entries (broadcast: of nothing but the root).
  uint64_t size_hash = 0;
  bool operator==(const CollectiveRecord&) const = default;
};

struct WorldOptions {
  // Private buffers per rank; every byte travels (stands in for several processes).
  bool copying = false;
  bool spin = true;              // false where threads outnumber cores
  double deadline_seconds = 60;  // how long a rank waits for the others in one collective
  bool trace = false;            // keep CollectiveRecords for world and group communicators
};

// All ranks of one process: makes each rank's world communicator and that of its replica's group.
class World {
 public:
  // `attn_tp_size` adjacent ranks form a group.
  static std::unique_ptr<World> Make(int tp_size, int attn_tp_size, const WorldOptions& options);
  virtual ~World() = default;

  // Valid as long as the World. A rank's two are used by one thread at a time.
  virtual Communicator& world(int rank) = 0;
  virtual Communicator& group(int rank) = 0;

  // Ends every waiting and later collective of all ranks with `status` (first call wins): for a
  // rank that failed for a reason of its own.
  virtual void Abort(Status status) = 0;
  // The status that ended the world, or ok.
  virtual Status failure() const = 0;
  // The trace of a rank's collectives, world and group ones in one order; cleared by the call. Not
  // while collectives run.
  virtual std::vector<CollectiveRecord> TakeTrace(int rank) = 0;
};

}  // namespace tandem
