// How much memory the machine gives this process, and how much it holds. Linux only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

// The machine's memory, or the limit of the control group that this process is in, if lower. Bytes.
int64_t MachineMemory();

// What the process holds in memory now: its resident set. Bytes; 0 if it cannot be told.
int64_t ResidentMemory();

// The number that the first line of a control group's limit file holds; INT64_MAX for "max" and
// whatever is no number.
int64_t ParseMemoryLimit(const std::string& text);

// Makes the system provide all pages of zeroed memory, near the calling thread's core, by writing
// one byte of each, as it is. REQUIRES: nobody else uses the memory.
void TouchPages(std::byte* data, size_t bytes);

}  // namespace tandem
