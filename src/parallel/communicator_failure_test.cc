#include <gtest/gtest.h>

#include <atomic>

#include "parallel/communicator.h"
#include "parallel/test_ranks.h"

namespace tandem {
namespace {

class CommunicatorFailureTest : public testing::TestWithParam<WorldShape> {
 protected:
  const WorldShape& shape() const { return GetParam(); }
  int size() const { return shape().tp_size; }
  int last() const { return size() - 1; }
  std::unique_ptr<World> MakeWorld(double deadline_seconds = 600) const {
    WorldOptions options = shape().Options();
    options.deadline_seconds = deadline_seconds;
    return World::Make(size(), shape().attn_tp_size, options);
  }

  // Every rank does `call`, after one good collective; all must end with `code` and a message that
  // holds `parts`, and so must every later collective, in the groups too.
  void ExpectFailure(World& world, StatusCode code, const std::vector<std::string>& parts,
                     const std::function<Status(Communicator&, SymmetricBuffer&, int)>& call) {
    RunRanks(size(), [&](int rank) {
      Communicator& communicator = world.world(rank);
      const auto buffer = communicator.AllocateGathered(4096);
      const std::vector<int32_t> no_rows(size() + 1, 0);
      ASSERT_TRUE(communicator.GatherRows({"warm", 5}, *buffer, 8, no_rows.data()).ok());
      const Status status = call(communicator, *buffer, rank);
      EXPECT_EQ(status.code(), code) << status.message();
      for (const std::string& part : parts) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
      for (Communicator* later : {&world.world(rank), &world.group(rank)}) {
        std::vector<std::byte> message;
        const Status again = later->Broadcast({"later"}, 0, message);
        EXPECT_EQ(again.code(), code);
        EXPECT_EQ(again.message(), status.message());
      }
    });
    EXPECT_EQ(world.failure().code(), code);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, CommunicatorFailureTest, testing::ValuesIn(AllShapes(2)),
                         [](const auto& info) { return info.param.Name(); });

TEST_P(CommunicatorFailureTest, NamesADifferentTag) {
  const auto world = MakeWorld();
  const std::string late = std::to_string(last());
  ExpectFailure(*world, StatusCode::kInternal,
                {"rank " + late + " called gather head/3 (sequence 2)",
                 "rank 0 called gather ffn/3 (sequence 2)"},
                [&](Communicator& communicator, SymmetricBuffer& buffer, int rank) {
                  const std::vector<int32_t> rows(size() + 1, 0);
                  return communicator.GatherRows({rank == last() ? "head" : "ffn", 3}, buffer, 8,
                                                 rows.data());
                });
}

TEST_P(CommunicatorFailureTest, NamesADifferentIndex) {
  const auto world = MakeWorld();
  ExpectFailure(
      *world, StatusCode::kInternal,
      {"rank " + std::to_string(last()) + " called all-gather ffn/4",
       "rank 0 called all-gather ffn/3"},
      [&](Communicator& communicator, SymmetricBuffer&, int rank) {
        int64_t record = rank;
        std::vector<int64_t> all(size());
        return communicator.AllGather({"ffn", rank == last() ? 4 : 3}, &record, 8, all.data());
      });
}

TEST_P(CommunicatorFailureTest, NamesADifferentKind) {
  const auto world = MakeWorld();
  ExpectFailure(
      *world, StatusCode::kInternal,
      {"rank " + std::to_string(last()) + " called broadcast ffn/3", "rank 0 called gather ffn/3"},
      [&](Communicator& communicator, SymmetricBuffer& buffer, int rank) {
        const std::vector<int32_t> rows(size() + 1, 0);
        std::vector<std::byte> message(3);
        if (rank == last()) return communicator.Broadcast({"ffn", 3}, 0, message);
        return communicator.GatherRows({"ffn", 3}, buffer, 8, rows.data());
      });
}

TEST_P(CommunicatorFailureTest, NamesDifferentRowBytes) {
  const auto world = MakeWorld();
  ExpectFailure(
      *world, StatusCode::kInternal,
      {"rank " + std::to_string(last()) + " called gather ffn/3", "with other sizes"},
      [&](Communicator& communicator, SymmetricBuffer& buffer, int rank) {
        std::vector<int32_t> rows(size() + 1, 0);
        rows[size()] = 2;
        return communicator.GatherRows({"ffn", 3}, buffer, rank == last() ? 16 : 8, rows.data());
      });
}

TEST_P(CommunicatorFailureTest, NamesADifferentSplit) {
  const auto world = MakeWorld();
  ExpectFailure(*world, StatusCode::kInternal,
                {"rank " + std::to_string(last()) + " called gather ffn/3", "with other sizes"},
                [&](Communicator& communicator, SymmetricBuffer& buffer, int rank) {
                  std::vector<int32_t> rows(size() + 1, 2);
                  rows[0] = 0;
                  if (rank == last()) rows[1] = 1;
                  return communicator.GatherRows({"ffn", 3}, buffer, 8, rows.data());
                });
}

TEST_P(CommunicatorFailureTest, NamesDifferentPieceBytes) {
  const auto world = MakeWorld();
  ExpectFailure(*world, StatusCode::kInternal,
                {"rank " + std::to_string(last()) + " called collect ffn/3", "with other sizes"},
                [&](Communicator& communicator, SymmetricBuffer&, int rank) {
                  const auto pieces = communicator.AllocatePieces(
                      std::vector<size_t>(size(), 100), 2, std::vector<size_t>(size(), 50));
                  std::vector<size_t> row_bytes(size(), 20);
                  if (rank == last()) row_bytes[0] = 30;
                  std::vector<int32_t> rows(size() + 1, 2);
                  rows[0] = 0;
                  return communicator.CollectRows({"ffn", 3}, *pieces, row_bytes, rows.data());
                });
}

TEST_P(CommunicatorFailureTest, NamesADifferentRoot) {
  const auto world = MakeWorld();
  ExpectFailure(
      *world, StatusCode::kInternal,
      {"rank " + std::to_string(last()) + " called broadcast plan/0", "with another root"},
      [&](Communicator& communicator, SymmetricBuffer&, int rank) {
        std::vector<std::byte> message(9);
        return communicator.Broadcast({"plan"}, rank == last() ? 1 : 0, message);
      });
}

TEST_P(CommunicatorFailureTest, AbortWakesAllGroupsAndTheFirstReasonStays) {
  const auto world = MakeWorld();
  std::atomic<int> calling{0};
  RunRanks(size(), [&](int rank) {
    if (rank == last()) {
      while (calling < last()) std::this_thread::yield();
      world->Abort(Internal("rank is out of memory"));
      world->Abort(Internal("too late"));
    }
    ++calling;
    const bool in_last_group = rank >= size() - shape().attn_tp_size;
    Communicator& communicator = in_last_group ? world->group(rank) : world->world(rank);
    std::vector<std::byte> message;
    const Status status = communicator.Broadcast({"plan"}, 0, message);
    EXPECT_EQ(status.message(), "rank is out of memory");
  });
  EXPECT_EQ(world->failure().message(), "rank is out of memory");
}

// Ranks abort at arbitrary moments of busy rounds: nobody may hang or read memory that is gone.
TEST_P(CommunicatorFailureTest, AbortAmidTraffic) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto world = MakeWorld();
    RunRanks(size(), [&](int rank) {
      std::vector<std::byte> message;
      std::vector<int64_t> all(size());
      Status status;
      for (int64_t round = 0; status.ok(); ++round) {
        message.assign(round % 300, std::byte{1});
        status = world->world(rank).Broadcast({"plan"}, 0, message);
        if (status.ok()) status = world->world(rank).AllGather({"agree"}, &round, 8, all.data());
        if (status.ok()) status = world->group(rank).Broadcast({"plan"}, 0, message);
        if (rank == attempt % size() && round == attempt) world->Abort(Unavailable("stop"));
      }
      EXPECT_EQ(status.message(), "stop");
    });
  }
}

// Each of these runs for the limit, so there are few of them; long enough that a busy machine does
// not make a rank of a test late that should not be.
constexpr double kShortLimit = 0.3;

class LateRankTest : public CommunicatorFailureTest {};

INSTANTIATE_TEST_SUITE_P(Shapes, LateRankTest,
                         testing::Values(WorldShape{2, 2, false}, WorldShape{4, 2, false},
                                         WorldShape{8, 4, false}, WorldShape{2, 2, true},
                                         WorldShape{4, 2, true}, WorldShape{8, 4, true}),
                         [](const auto& info) { return info.param.Name(); });

TEST_P(LateRankTest, NamesALateRankAndItsLastCollective) {
  const auto world = MakeWorld(kShortLimit);
  std::atomic<bool> warm{false};
  ExpectFailure(
      *world, StatusCode::kDeadlineExceeded,
      {"in gather ffn/3 (sequence 2)", "rank 1, which last completed gather warm/5 (sequence 1)"},
      [&](Communicator& communicator, SymmetricBuffer& buffer, int rank) {
        // Rank 1 stays away until the others, who wait for its first call's end, gave up.
        if (rank == 1) warm = true;
        while (!warm) std::this_thread::yield();
        while (rank == 1 && world->failure().ok()) std::this_thread::yield();
        const std::vector<int32_t> rows(size() + 1, 0);
        return communicator.GatherRows({"ffn", 3}, buffer, 8, rows.data());
      });
}

TEST_P(LateRankTest, NamesARankThatNeverCame) {
  const auto world = MakeWorld(kShortLimit);
  RunRanks(size(), [&](int rank) {
    if (rank == last()) return;
    std::vector<std::byte> message;
    const Status status = world->world(rank).Broadcast({"plan"}, 0, message);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    const std::string late = "rank " + std::to_string(last()) + ", which called no collective yet";
    EXPECT_NE(status.message().find(late), std::string::npos) << status.message();
  });
}

// Ranks of the last replica wait in their group for its last rank, all others in the world: either
// report is right, if it names the rank that hangs.
TEST_P(LateRankTest, NamesALateRankAcrossGroups) {
  const auto world = MakeWorld(kShortLimit);
  RunRanks(size(), [&](int rank) {
    if (rank == last()) return;
    const bool in_last_group = rank >= size() - shape().attn_tp_size;
    Communicator& communicator = in_last_group ? world->group(rank) : world->world(rank);
    std::vector<std::byte> message;
    const Status status = communicator.Broadcast({"plan"}, 0, message);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    const std::string late = "rank " + std::to_string(last()) + ", which called no collective yet";
    EXPECT_NE(status.message().find(late), std::string::npos) << status.message();
  });
}

TEST(WorldDeathTest, AllocationsOfDifferentSizesAreOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto world = World::Make(2, 2, {.spin = false});
  const auto buffer = world->world(0).AllocateGathered(64);
  EXPECT_DEATH(world->world(1).AllocateGathered(128), "CHECK failed");
  const int32_t rows[] = {0, 5, 9};
  EXPECT_DEATH((void)world->world(0).GatherRows({"x"}, *buffer, 8, rows), "CHECK failed");
}

}  // namespace
}  // namespace tandem
