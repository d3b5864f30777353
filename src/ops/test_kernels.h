// The tables of kernels that tests run over: every instruction set that this machine has, and
// AVX-512's source over an emulation. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "ops/kernels.h"

namespace tandem {

struct NamedKernels {
  std::string name;
  const Kernels* kernels;
};

std::vector<NamedKernels> AllKernels();

inline void PrintTo(const NamedKernels& named, std::ostream* out) {
  *out << named.name;
}

// A test of what gives equal bits with every table.
class KernelTest : public testing::TestWithParam<NamedKernels> {
 protected:
  const Kernels& kernels() const { return *GetParam().kernels; }
};

// Instantiates a fixture derived from KernelTest.
#define TANDEM_FOR_ALL_KERNELS(fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(Isa, fixture, testing::ValuesIn(AllKernels()), \
                           [](const auto& info) { return info.param.name; })

}  // namespace tandem
