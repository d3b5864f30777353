// A program: the recorded list of operations of one step on one rank, and its execution by the
// rank's thread team. Knows no model: an operation is a function over buffers that it was recorded
// with.
//
// Invariants:
// 1. Operations run in recorded order; all threads of the team meet after each, so an operation
// sees everything that
//    earlier ones wrote.
// 2. Whatever may vary between two runs of one program (row counts, tokens, block tables) is read
// from buffers when
//    the operation runs, never captured by value at recording.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "parallel/thread_team.h"

namespace tandem {

// One thread's share of an operation: it does part `thread` of `num_threads`.
struct Worker {
  int thread = 0;
  int num_threads = 1;
};

// Names an operation for traces and failures: `layer` counts decoder layers (the MTP module's is
// num_hidden_layers), `pass` is 0 for the target and the fill, j for draft pass j.
struct OpTag {
  const char* name = "";
  int layer = -1;
  int pass = 0;
};

// Receives a hash of each output row of an operation. `unit` tells parts of one row apart whose
// place depends on the layout (heads, experts).
class RowTracer {
 public:
  virtual ~RowTracer() = default;
  virtual void Row(const OpTag& op, uint64_t request_id, int64_t position, int unit,
                   const void* data, size_t bytes) = 0;
};

class Program {
 public:
  using Work = std::function<void(const Worker&)>;
  using Trace = std::function<void(RowTracer&, const OpTag&)>;

  // Recorded operations; `trace` (optional) reports the rows that the operation has written.
  void Add(OpTag tag, Work work, Trace trace = nullptr);
  // An operation that meets other ranks: run by thread 0 alone; its failure ends the run.
  void AddCollective(OpTag tag, std::function<Status()> work);

  size_t num_operations() const { return operations_.size(); }
  size_t num_collectives() const { return num_collectives_; }

  // Runs all operations on `team`; the caller is its thread 0. Returns the first failure of a
  // collective.
  Status Run(ThreadTeam& team, RowTracer* tracer = nullptr) const;

 private:
  struct Operation {
    OpTag tag;
    Work work;
    std::function<Status()> collective;
    Trace trace;
  };

  // The first failure of a run: written by thread 0, read by all.
  struct Failure {
    std::atomic<size_t> operation = std::numeric_limits<size_t>::max();
    Status status;
  };

  void RunThread(int thread, ThreadTeam& team, RowTracer* tracer, Failure& failure) const;

  std::vector<Operation> operations_;
  size_t num_collectives_ = 0;
};

}  // namespace tandem
