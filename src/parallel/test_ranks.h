// Worlds and their ranks' threads for the tests of this folder. Not for production code.
#pragma once

#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace tandem {

// Calls run(rank) on a thread per rank, once all threads exist (so that short limits hold).
inline void RunRanks(int size, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  std::latch started(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      started.arrive_and_wait();
      run(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One cell of the suites that both kinds of communicator pass.
struct WorldShape {
  int tp_size;
  int attn_tp_size;
  bool copying;

  // The limit is far beyond any run, so that only tests of the limit meet it.
  WorldOptions Options() const {
    return {.copying = copying, .spin = tp_size <= 2, .deadline_seconds = 600, .trace = true};
  }
  std::string Name() const {
    return std::to_string(tp_size) + "By" + std::to_string(attn_tp_size) +
           (copying ? "Copying" : "InPlace");
  }
};

inline std::vector<WorldShape> AllShapes(int min_tp_size) {
  std::vector<WorldShape> shapes;
  for (bool copying : {false, true}) {
    for (int tp : {1, 2, 4, 8}) {
      for (int attn_tp = 1; attn_tp <= tp; attn_tp *= 2) {
        if (tp >= min_tp_size) shapes.push_back({tp, attn_tp, copying});
      }
    }
  }
  return shapes;
}

}  // namespace tandem
