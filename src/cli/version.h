// The project's version, as `tandem --version` shows it.
#pragma once

namespace tandem {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace tandem
