// The instruction sets that kernels are built for: their names and what this machine can run.
#pragma once

#include <optional>
#include <string_view>

namespace tandem {

// kAvx2: AVX2, FMA and F16C, which the whole program needs anyway. kAvx512: its F, BW, DQ and VL
// parts on top.
enum class Isa { kAvx2, kAvx512 };

const char* IsaName(Isa isa);  // "avx2", "avx512"
std::optional<Isa> ParseIsa(std::string_view name);

// Whether processor and operating system let this process run it.
bool IsSupported(Isa isa);
Isa BestIsa();

}  // namespace tandem
