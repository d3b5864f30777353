#include "ops/test_kernels.h"

namespace tandem {

namespace avx512_emulated {
extern const Kernels kKernels;
}

std::vector<NamedKernels> AllKernels() {
  std::vector<NamedKernels> all;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (IsSupported(isa)) all.push_back({IsaName(isa), &KernelsFor(isa)});
  }
  all.push_back({"avx512_emulated", &avx512_emulated::kKernels});
  return all;
}

}  // namespace tandem
