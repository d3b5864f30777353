// One thread that runs tasks in order: work that may take long and so must stay off the I/O thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tandem {

// Thread-safe. The destructor drops the tasks that have not begun.
class TaskThread {
 public:
  TaskThread();
  ~TaskThread();

  void Run(std::function<void()> task);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem
