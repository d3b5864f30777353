// Owned, zeroed, 64-byte aligned memory for weights, caches and workspaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/system_memory.h"

namespace tandem {

// A cache line, and the width of the widest vector registers.
inline constexpr size_t kAlignment = 64;

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  // Zeroed by calloc: pages of a large buffer take memory only once they are touched.
  explicit Buffer(size_t count) : size_(count) {
    if (count == 0) return;
    raw_.reset(std::calloc(count * sizeof(T) + kAlignment, 1));
    CHECK(raw_ != nullptr);
    const uintptr_t address = reinterpret_cast<uintptr_t>(raw_.get());
    data_ = reinterpret_cast<T*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  // Makes the system provide all pages, near the calling thread's core. Contents stay.
  void Touch() const { TouchPages(reinterpret_cast<std::byte*>(data_), bytes()); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](size_t i) const { return data_[i]; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> raw_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem
