// How far loading is, as one line that is drawn over itself on a terminal. Nothing elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace tandem {

// "loading [#####.....]  50 %, 3 s left" without a line end. `fraction` in [0, 1].
std::string ProgressLine(double fraction, double seconds_so_far);

// Draws to standard error if that is a terminal. Calls must not overlap.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // ends the line if there is one

  void Show(double fraction);

 private:
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point start_;
  bool drawn_ = false;
};

}  // namespace tandem
