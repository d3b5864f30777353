#include "ops/isa.h"

namespace tandem {

const char* IsaName(Isa isa) {
  return isa == Isa::kAvx2 ? "avx2" : "avx512";
}

std::optional<Isa> ParseIsa(std::string_view name) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (name == IsaName(isa)) return isa;
  }
  return std::nullopt;
}

// The builtins know cpuid and, by xgetbv, which registers the operating system saves.
bool IsSupported(Isa isa) {
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  }
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

Isa BestIsa() {
  return IsSupported(Isa::kAvx512) ? Isa::kAvx512 : Isa::kAvx2;
}

}  // namespace tandem
