#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tandem {
namespace {

// Fits a terminal of 80 columns with the words around it.
constexpr int kWidth = 40;

}  // namespace

std::string ProgressLine(double fraction, double seconds_so_far) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  const int full = static_cast<int>(fraction * kWidth);
  std::string line = fmt::format("loading [{}{}] {:3.0f} %", std::string(full, '#'),
                                 std::string(kWidth - full, '.'), std::floor(fraction * 100));
  // Before a twentieth is done the rate says little.
  if (fraction >= 0.05 && fraction < 1.0) {
    line += fmt::format(", {:.0f} s left", seconds_so_far / fraction * (1.0 - fraction));
  }
  return line;
}

ProgressBar::ProgressBar()
    : on_terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputc('\n', stderr);
}

void ProgressBar::Show(double fraction) {
  if (!on_terminal_) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
  // The rest of a longer line before is cleared.
  std::fprintf(stderr, "\r%s\033[K", ProgressLine(fraction, time.count()).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace tandem
