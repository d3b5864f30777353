#include "ops/experts.h"

#include <algorithm>

#include "ops/cpu/activation.h"
#include "ops/cpu/panel.h"

namespace tandem::TANDEM_ISA {
namespace {

// The levels of the segment tree while it is summed, for one panel of columns of all rows: level l
// holds a finished subtree of 2^l segments. One thread's scratch.
class PanelTree {
 public:
  explicit PanelTree(int64_t rows) : rows_(rows) {}

  // A zeroed [rows] for the next segment.
  Vec16* Begin() {
    if (free_.empty()) free_.emplace_back(rows_);
    current_ = std::move(free_.back());
    free_.pop_back();
    std::fill(current_.begin(), current_.end(), Vec16::Zero());
    return current_.data();
  }

  void End() {
    size_t level = 0;
    for (int index = count_++; index & 1; index >>= 1, ++level) {
      std::vector<Vec16>& left = levels_[level];
      for (int64_t r = 0; r < rows_; ++r) current_[r] = left[r] + current_[r];
      free_.push_back(std::move(left));
    }
    if (levels_.size() <= level) levels_.resize(level + 1);
    levels_[level] = std::move(current_);
    top_ = level;
  }

  const Vec16* Total() const { return levels_[top_].data(); }

 private:
  int64_t rows_;
  int count_ = 0;
  size_t top_ = 0;
  std::vector<Vec16> current_;
  std::vector<std::vector<Vec16>> levels_, free_;
};

// sums[row] += weight * (activation . panel) for the pairs of one expert.
void AddExpert(const ExpertWeights& expert, int64_t panel, const ExpertGroups& groups,
               int64_t begin, int64_t end, OutputRows activations, Vec16* sums) {
  for (int64_t pair = begin; pair < end; pair += kTileRows) {
    const int count = static_cast<int>(std::min<int64_t>(kTileRows, end - pair));
    const float* inputs[kTileRows] = {};
    Vec16 y[kTileRows];
    for (int i = 0; i < count; ++i) {
      inputs[i] = activations.row(pair + i);
      y[i] = Vec16::Zero();
    }
    PanelChain(expert.down, panel, count, 0, expert.down.depth(), inputs, y);
    for (int i = 0; i < count; ++i) {
      Vec16& sum = sums[groups.rows[pair + i]];
      sum = Fma(Vec16::Broadcast(groups.weights[pair + i]), y[i], sum);
    }
  }
}

}  // namespace

void ExpertsGateUp(std::span<const ExpertWeights> experts, const ExpertGroups& groups, InputRows x,
                   OutputRows activations, const Worker& worker) {
  if (experts.empty()) return;
  const int64_t panels = experts[0].gate.num_panels();
  const Range tasks =
      Share(static_cast<int64_t>(experts.size()) * panels, worker.thread, worker.num_threads);
  for (int64_t task = tasks.begin; task < tasks.end; ++task) {
    const int64_t e = task / panels;
    for (int64_t pair = groups.begin[e]; pair < groups.begin[e + 1]; pair += kTileRows) {
      const int count = static_cast<int>(std::min<int64_t>(kTileRows, groups.begin[e + 1] - pair));
      const float* inputs[kTileRows] = {};
      float* outputs[kTileRows] = {};
      for (int i = 0; i < count; ++i) {
        inputs[i] = x.row(groups.rows[pair + i]);
        outputs[i] = activations.row(pair + i);
      }
      GateUpTile(experts[e].gate, experts[e].up, task % panels, count, inputs, outputs);
    }
  }
}

void ExpertsDown(std::span<const ExpertWeights> experts, std::span<const int32_t> bounds,
                 const ExpertGroups& groups, OutputRows activations, int64_t rows, int64_t columns,
                 OutputRows y, const Worker& worker) {
  if (experts.empty()) {  // a rank of empty segments brings +0
    const Range share = Share(rows, worker.thread, worker.num_threads);
    for (int64_t r = share.begin; r < share.end; ++r) std::fill_n(y.row(r), columns, 0.0f);
    return;
  }
  const Range panels = Share(experts[0].down.num_panels(), worker.thread, worker.num_threads);
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    PanelTree tree(rows);
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      Vec16* sums = tree.Begin();
      for (int32_t e = bounds[s]; e < bounds[s + 1]; ++e) {
        AddExpert(experts[e], p, groups, groups.begin[e], groups.begin[e + 1], activations, sums);
      }
      tree.End();
    }
    const Vec16* total = tree.Total();
    for (int64_t r = 0; r < rows; ++r) {
      total[r].Store(y.row(r) + p * kPanel, std::min(kPanel, columns - p * kPanel));
    }
  }
}

}  // namespace tandem::TANDEM_ISA
