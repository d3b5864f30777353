#include "ops/matmul.h"

#include <algorithm>

#include "ops/cpu/activation.h"
#include "ops/cpu/panel.h"

namespace tandem::TANDEM_ISA {
namespace {

int64_t ColumnsOfPanel(const PackedMatrix& w, int64_t panel) {
  return std::min(kPanel, w.columns() - panel * kPanel);
}

// Calls tile(first_row, num_rows) for all rows in tiles of kTileRows.
template <typename Tile>
void ForRowTiles(int64_t rows, const Tile& tile) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    tile(row, static_cast<int>(std::min<int64_t>(kTileRows, rows - row)));
  }
}

void MatmulPanel(const PackedMatrix& w, int64_t panel, InputRows x, int64_t rows, OutputRows y) {
  ForRowTiles(rows, [&](int64_t first, int count) {
    const float* inputs[kTileRows] = {};
    Vec16 sum[kTileRows];
    for (int i = 0; i < count; ++i) {
      inputs[i] = x.row(first + i);
      sum[i] = Vec16::Zero();
    }
    PanelChain(w, panel, count, 0, w.depth(), inputs, sum);
    for (int i = 0; i < count; ++i) {
      sum[i].Store(y.row(first + i) + panel * kPanel, ColumnsOfPanel(w, panel));
    }
  });
}

void MatmulSegmentsTile(const PackedMatrix& w, int64_t panel, std::span<const int32_t> bounds,
                        InputRows x, int64_t first, int count, OutputRows y) {
  const float* inputs[kTileRows] = {};
  TreeSum<Vec16> tree[kTileRows];
  for (int i = 0; i < count; ++i) inputs[i] = x.row(first + i);
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    Vec16 sum[kTileRows];
    for (int i = 0; i < count; ++i) sum[i] = Vec16::Zero();
    PanelChain(w, panel, count, bounds[s], bounds[s + 1], inputs, sum);
    for (int i = 0; i < count; ++i) tree[i].Push(sum[i]);
  }
  for (int i = 0; i < count; ++i) {
    tree[i].Total().Store(y.row(first + i) + panel * kPanel, ColumnsOfPanel(w, panel));
  }
}

}  // namespace

void Matmul(const PackedMatrix& w, InputRows x, int64_t rows, OutputRows y, const Worker& worker) {
  const Range panels = Share(w.num_panels(), worker.thread, worker.num_threads);
  for (int64_t p = panels.begin; p < panels.end; ++p) MatmulPanel(w, p, x, rows, y);
}

void MatmulHeads(std::span<const PackedMatrix> w, InputRows x, int64_t x_head, int64_t rows,
                 OutputRows y, int64_t y_head, const Worker& worker) {
  if (w.empty()) return;
  const int64_t panels = w[0].num_panels();
  const Range tasks =
      Share(static_cast<int64_t>(w.size()) * panels, worker.thread, worker.num_threads);
  for (int64_t task = tasks.begin; task < tasks.end; ++task) {
    const int64_t head = task / panels;
    MatmulPanel(w[head], task % panels, {x.data + head * x_head, x.stride}, rows,
                {y.data + head * y_head, y.stride});
  }
}

void MatmulSegments(const PackedMatrix& w, std::span<const int32_t> bounds, InputRows x,
                    int64_t rows, OutputRows y, const Worker& worker) {
  CHECK(bounds.front() == 0 && bounds.back() == w.depth());
  const Range panels = Share(w.num_panels(), worker.thread, worker.num_threads);
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    ForRowTiles(rows, [&](int64_t first, int count) {
      MatmulSegmentsTile(w, p, bounds, x, first, count, y);
    });
  }
}

void GateUp(const PackedMatrix& gate, const PackedMatrix& up, InputRows x, int64_t rows,
            OutputRows y, const Worker& worker) {
  const Range panels = Share(gate.num_panels(), worker.thread, worker.num_threads);
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    ForRowTiles(rows, [&](int64_t first, int count) {
      const float* inputs[kTileRows] = {};
      float* outputs[kTileRows] = {};
      for (int i = 0; i < count; ++i) {
        inputs[i] = x.row(first + i);
        outputs[i] = y.row(first + i);
      }
      GateUpTile(gate, up, p, count, inputs, outputs);
    });
  }
}

}  // namespace tandem::TANDEM_ISA
