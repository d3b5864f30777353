#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "parallel/test_ranks.h"

namespace tandem {
namespace {

constexpr int kMaxRowsPerRank = 6;
constexpr size_t kMaxRowBytes = 70;

class CommunicatorTest : public testing::TestWithParam<WorldShape> {
 protected:
  const WorldShape& shape() const { return GetParam(); }
  std::unique_ptr<World> MakeWorld() const {
    return World::Make(shape().tp_size, shape().attn_tp_size, shape().Options());
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, CommunicatorTest, testing::ValuesIn(AllShapes(1)),
                         [](const auto& info) { return info.param.Name(); });

// A byte that depends on all it should depend on.
std::byte Pattern(int round, int maker, int64_t row, size_t byte) {
  return static_cast<std::byte>((round * 31 + maker * 57 + row * 101 + byte * 7) % 251);
}

// The sizes of one round in one group: the same on all its ranks, as they come from the same seed.
struct Sizes {
  std::vector<int32_t> row_begin;
  size_t row_bytes;
  std::vector<size_t> piece_bytes;

  Sizes(int round, int group_size) {
    std::mt19937 random(round * 1000 + group_size);
    row_begin.push_back(0);
    // Every fourth round is empty on all ranks; otherwise a rank has no rows half of the time.
    for (int rank = 0; rank < group_size; ++rank) {
      const bool empty = round % 4 == 3 || random() % 2 == 0;
      row_begin.push_back(row_begin.back() + (empty ? 0 : random() % (kMaxRowsPerRank + 1)));
      piece_bytes.push_back(random() % (kMaxRowBytes + 1));
    }
    row_bytes = random() % (kMaxRowBytes + 1);
  }
};

// One rank's buffers in one group, and what it does with them in a round.
class Exchange {
 public:
  explicit Exchange(Communicator& communicator) : communicator_(communicator) {
    const int size = communicator.size();
    const size_t bytes = size * kMaxRowsPerRank * kMaxRowBytes;
    gathered_ = communicator.AllocateGathered(bytes);
    pieces_ = communicator.AllocatePieces(std::vector<size_t>(size, bytes), kMaxRowsPerRank,
                                          std::vector<size_t>(size, kMaxRowBytes));
  }

  // Both return how many bytes are wrong.
  int Gather(int round) {
    const Sizes sizes(round, communicator_.size());
    const int rank = communicator_.rank();
    auto at = [&](int64_t row, size_t byte) -> std::byte& {
      return gathered_->local()[row * sizes.row_bytes + byte];
    };
    for (int64_t row = sizes.row_begin[rank]; row < sizes.row_begin[rank + 1]; ++row) {
      for (size_t byte = 0; byte < sizes.row_bytes; ++byte)
        at(row, byte) = Pattern(round, 0, row, byte);
    }
    const Status status = communicator_.GatherRows({"gather", round}, *gathered_, sizes.row_bytes,
                                                   sizes.row_begin.data());
    EXPECT_TRUE(status.ok()) << status.message();
    int wrong = 0;
    for (int64_t row = 0; row < sizes.row_begin.back(); ++row) {
      for (size_t byte = 0; byte < sizes.row_bytes; ++byte) {
        wrong += at(row, byte) != Pattern(round, 0, row, byte);
      }
    }
    return wrong;
  }

  int Collect(int round) {
    const Sizes sizes(round, communicator_.size());
    const int rank = communicator_.rank();
    const size_t own_bytes = sizes.piece_bytes[rank];
    for (int64_t row = 0; row < sizes.row_begin.back(); ++row) {
      for (size_t byte = 0; byte < own_bytes; ++byte) {
        pieces_->local()[row * own_bytes + byte] = Pattern(round, rank + 1, row, byte);
      }
    }
    const Status status = communicator_.CollectRows({"collect", round}, *pieces_, sizes.piece_bytes,
                                                    sizes.row_begin.data());
    EXPECT_TRUE(status.ok()) << status.message();
    int wrong = 0;
    const int64_t first = sizes.row_begin[rank];
    for (int peer = 0; peer < communicator_.size(); ++peer) {
      const size_t bytes = sizes.piece_bytes[peer];
      for (int64_t row = first; row < sizes.row_begin[rank + 1]; ++row) {
        for (size_t byte = 0; byte < bytes; ++byte) {
          wrong += pieces_->From(peer)[(row - first) * bytes + byte] !=
                   Pattern(round, peer + 1, row, byte);
        }
      }
    }
    return wrong;
  }

 private:
  Communicator& communicator_;
  std::unique_ptr<SymmetricBuffer> gathered_;
  std::unique_ptr<PieceBuffer> pieces_;
};

TEST_P(CommunicatorTest, RanksAndSizes) {
  const auto world = MakeWorld();
  for (int rank = 0; rank < shape().tp_size; ++rank) {
    EXPECT_EQ(world->world(rank).rank(), rank);
    EXPECT_EQ(world->world(rank).size(), shape().tp_size);
    EXPECT_EQ(world->group(rank).rank(), rank % shape().attn_tp_size);
    EXPECT_EQ(world->group(rank).size(), shape().attn_tp_size);
    EXPECT_EQ(world->world(rank).shares_memory(), !shape().copying);
  }
}

// Buffers are rewritten every round, world and groups take turns, and splits are random with many
// empty ranks: a rank that runs ahead, or reads what is being written, shows as wrong bytes or as a
// race under the sanitizer.
TEST_P(CommunicatorTest, RowsArriveInManyRoundsOfRandomSplits) {
  const auto world = MakeWorld();
  RunRanks(shape().tp_size, [&](int rank) {
    Exchange all(world->world(rank));
    Exchange replica(world->group(rank));
    int wrong = 0;
    for (int round = 0; round < 200; ++round) {
      wrong += all.Gather(round);
      wrong += replica.Gather(round);
      wrong += all.Collect(round);
      wrong += replica.Collect(round);
    }
    EXPECT_EQ(wrong, 0) << "rank " << rank;
  });
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  const auto world = MakeWorld();
  RunRanks(shape().tp_size, [&](int rank) {
    for (int round = 0; round < 60; ++round) {
      for (Communicator* communicator : {&world->world(rank), &world->group(rank)}) {
        const int root = round % communicator->size();
        auto message_of = [&](int sender) {
          std::vector<std::byte> message(round % 7 * 20);
          for (size_t i = 0; i < message.size(); ++i) message[i] = Pattern(round, sender, 0, i);
          return message;
        };
        std::vector<std::byte> message = message_of(communicator->rank());
        ASSERT_TRUE(communicator->Broadcast({"plan", round}, root, message).ok());
        ASSERT_EQ(message, message_of(root)) << "rank " << rank << " round " << round;
      }
    }
  });
}

TEST_P(CommunicatorTest, AllGathersRecords) {
  struct Record {
    int64_t round;
    int64_t rank;
  };
  const auto world = MakeWorld();
  RunRanks(shape().tp_size, [&](int rank) {
    for (int round = 0; round < 300; ++round) {
      for (Communicator* communicator : {&world->world(rank), &world->group(rank)}) {
        std::vector<Record> all(communicator->size());
        // Reused at once, which the call must allow.
        Record record{round, communicator->rank()};
        ASSERT_TRUE(communicator->AllGather({"agree"}, &record, sizeof record, all.data()).ok());
        record = {-1, -1};
        for (int peer = 0; peer < communicator->size(); ++peer) {
          ASSERT_EQ(all[peer].round, round);
          ASSERT_EQ(all[peer].rank, peer);
        }
      }
    }
  });
}

TEST_P(CommunicatorTest, BuffersAreZeroedAlignedAndSharedOnlyInPlace) {
  const auto world = MakeWorld();
  const int size = shape().tp_size;
  std::vector<std::byte*> views(size);
  RunRanks(size, [&](int rank) {
    Communicator& communicator = world->world(rank);
    const auto buffer = communicator.AllocateGathered(1000);
    const auto pieces = communicator.AllocatePieces(std::vector<size_t>(size, 1000), 10,
                                                    std::vector<size_t>(size, 100));
    views[rank] = buffer->local();
    EXPECT_EQ(buffer->size(), 1000u);
    for (const std::byte* memory : {buffer->local(), pieces->local()}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
      for (int i = 0; i < 1000; ++i) EXPECT_EQ(memory[i], std::byte{0});
    }
    // All are alive at once, so that equal views are one memory.
    const int32_t none[17] = {};
    EXPECT_TRUE(communicator.GatherRows({"meet"}, *buffer, 1, none).ok());
  });
  EXPECT_EQ(std::set<std::byte*>(views.begin(), views.end()).size(), shape().copying ? size : 1u);
}

TEST_P(CommunicatorTest, TracesAreEqualAndTellEveryCollective) {
  const auto world = MakeWorld();
  RunRanks(shape().tp_size, [&](int rank) {
    Exchange all(world->world(rank));
    Exchange replica(world->group(rank));
    all.Gather(0);
    replica.Gather(1);
    replica.Collect(2);
    int64_t record = rank;
    std::vector<int64_t> records(shape().tp_size);
    EXPECT_TRUE(world->world(rank).AllGather({"agree", 7}, &record, 8, records.data()).ok());
    std::vector<std::byte> message;
    EXPECT_TRUE(world->group(rank).Broadcast({"plan"}, 0, message).ok());
  });
  const std::vector<CollectiveRecord> first = world->TakeTrace(0);
  std::string told;
  for (const CollectiveRecord& record : first) {
    told += std::string(1, record.kind) + record.tag + "#" + std::to_string(record.sequence) + " ";
  }
  EXPECT_EQ(told, "ggather/0#1 ggather/1#1 ccollect/2#2 aagree/7#2 bplan/0#3 ");
  for (int rank = 1; rank < shape().tp_size; ++rank) EXPECT_EQ(world->TakeTrace(rank), first);
  EXPECT_TRUE(world->TakeTrace(0).empty());
}

TEST_P(CommunicatorTest, TraceTellsSizesApart) {
  const auto world = MakeWorld();
  const int size = shape().tp_size;
  RunRanks(size, [&](int rank) {
    Communicator& communicator = world->world(rank);
    const auto buffer = communicator.AllocateGathered(100);
    std::vector<int32_t> row_begin(size + 1, 0);
    EXPECT_TRUE(communicator.GatherRows({"x"}, *buffer, 4, row_begin.data()).ok());
    EXPECT_TRUE(communicator.GatherRows({"x"}, *buffer, 8, row_begin.data()).ok());
    row_begin[size] = 1;
    EXPECT_TRUE(communicator.GatherRows({"x"}, *buffer, 8, row_begin.data()).ok());
  });
  std::set<uint64_t> hashes;
  for (const CollectiveRecord& record : world->TakeTrace(0)) hashes.insert(record.size_hash);
  EXPECT_EQ(hashes.size(), 3u);
}

}  // namespace
}  // namespace tandem
