#include "ops/isa.h"

#include <gtest/gtest.h>

#include "ops/kernels.h"

namespace tandem {
namespace {

TEST(Isa, NamesAreReadBack) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(ParseIsa(IsaName(isa)), isa);
  EXPECT_STREQ(IsaName(Isa::kAvx512), "avx512");
  for (const char* name : {"", "AVX2", "avx", "avx5120", "auto"}) {
    EXPECT_FALSE(ParseIsa(name).has_value()) << name;
  }
}

TEST(Isa, TheBestOneIsSupportedAndHasItsOwnKernels) {
  EXPECT_TRUE(IsSupported(Isa::kAvx2));  // or this program would not run
  EXPECT_TRUE(IsSupported(BestIsa()));
  EXPECT_EQ(BestIsa() == Isa::kAvx512, IsSupported(Isa::kAvx512));
  EXPECT_NE(KernelsFor(Isa::kAvx2).matmul, nullptr);
  if (IsSupported(Isa::kAvx512)) {
    EXPECT_NE(KernelsFor(Isa::kAvx2).matmul, KernelsFor(Isa::kAvx512).matmul);
  }
}

}  // namespace
}  // namespace tandem
