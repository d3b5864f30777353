#include "ops/kernels.h"

#include <type_traits>

namespace tandem::TANDEM_ISA {

// Declared from the table's own types: a definition that differs from them does not link.
template <typename Pointer>
using FunctionOf = std::remove_pointer_t<Pointer>;
FunctionOf<decltype(Kernels::matmul)> Matmul;
FunctionOf<decltype(Kernels::matmul_heads)> MatmulHeads;
FunctionOf<decltype(Kernels::matmul_segments)> MatmulSegments;
FunctionOf<decltype(Kernels::gate_up)> GateUp;
FunctionOf<decltype(Kernels::experts_gate_up)> ExpertsGateUp;
FunctionOf<decltype(Kernels::experts_down)> ExpertsDown;
FunctionOf<decltype(Kernels::latent_attention)> LatentAttention;
FunctionOf<decltype(Kernels::rms_norm)> RmsNorm;
FunctionOf<decltype(Kernels::add_pieces)> AddPieces;

// Filled by the linker: code that ran at start-up would be in this instruction set.
extern constinit const Kernels kKernels = {
    .matmul = Matmul,
    .matmul_heads = MatmulHeads,
    .matmul_segments = MatmulSegments,
    .gate_up = GateUp,
    .experts_gate_up = ExpertsGateUp,
    .experts_down = ExpertsDown,
    .latent_attention = LatentAttention,
    .rms_norm = RmsNorm,
    .add_pieces = AddPieces,
};

}  // namespace tandem::TANDEM_ISA
