// silu(gate x) * (up x) for some rows and one panel; shared by dense, shared-expert and expert
// kernels in ops/cpu.
#pragma once

#include <algorithm>

#include "ops/cpu/panel.h"
#include "ops/math.h"

namespace tandem::TANDEM_ISA {

// outputs[i][16 p ..] = silu(g) * u, with silu(g) = g / (1 + exp(-g)).
inline void GateUpTile(const PackedMatrix& gate, const PackedMatrix& up, int64_t panel, int rows,
                       const float* const* inputs, float* const* outputs) {
  Vec16 gates[kTileRows], ups[kTileRows];
  for (int i = 0; i < rows; ++i) gates[i] = ups[i] = Vec16::Zero();
  PanelChain(gate, panel, rows, 0, gate.depth(), inputs, gates);
  PanelChain(up, panel, rows, 0, up.depth(), inputs, ups);
  const int64_t columns = std::min(kPanel, gate.columns() - panel * kPanel);
  for (int i = 0; i < rows; ++i) {
    float g[kPanel], u[kPanel];
    gates[i].Store(g);
    ups[i].Store(u);
    float* y = outputs[i] + panel * kPanel;
    for (int64_t c = 0; c < columns; ++c) y[c] = g[c] / (1.0f + Exp(-g[c])) * u[c];
  }
}

}  // namespace tandem::TANDEM_ISA
