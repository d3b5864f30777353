#include "ops/kernels.h"

namespace tandem {

namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

const Kernels& KernelsFor(Isa isa) {
  CHECK(IsSupported(isa));
  return isa == Isa::kAvx512 ? avx512::kKernels : avx2::kKernels;
}

}  // namespace tandem
