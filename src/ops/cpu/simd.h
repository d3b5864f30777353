// Vec16, sixteen float lanes, in which CPU kernels are written, as the instruction set that is
// being built defines it. Only for sources in ops/cpu: CMakeLists.txt compiles each of them once
// per set with TANDEM_ISA, the namespace of everything there, and TANDEM_VEC16_HEADER.
#pragma once

#include TANDEM_VEC16_HEADER

namespace tandem::TANDEM_ISA {

inline constexpr int64_t kLanes = 16;

// What Vec16::Load divides FP8 codes by.
inline constexpr float kCodeDivisor = 256.0f;

}  // namespace tandem::TANDEM_ISA
