// One .safetensors file, mapped read-only and checked whole before any tensor is handed out. Knows
// no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "base/status.h"

namespace tandem {

// Number formats that the file format knows. Which of them a loader can use is the loader's affair.
enum class DType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

size_t DTypeSize(DType dtype);       // bytes of one element
const char* DTypeName(DType dtype);  // as written in the file, "BF16"

// One tensor inside a mapped file, row-major; valid as long as its file. `data` may be misaligned
// for the dtype: read it with the functions below or memcpy.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t elements() const { return static_cast<int64_t>(bytes / DTypeSize(dtype)); }
};

std::string ShapeName(const std::vector<int64_t>& shape);  // "[3, 4]"

// Elements [begin, begin + out.size()) in row-major order, as floats (exact). REQUIRES: dtype BF16
// or F32, the range lies inside the tensor. Row r of a matrix begins at r * shape[1].
void ReadFloats(const TensorView& tensor, int64_t begin, std::span<float> out);

// The same for a BF16 tensor without conversion. REQUIRES: dtype BF16, the range lies inside the
// tensor.
void ReadBFloat16(const TensorView& tensor, int64_t begin, std::span<BFloat16> out);

// A mapped file. Immutable after Open, so any thread may read. Movable; views stay valid across
// moves. Invariants after Open: every tensor's bytes equal product(shape) * DTypeSize(dtype); the
// tensors tile the data region in some order without overlap, hole or rest.
class SafetensorsFile {
 public:
  // Errors: kNotFound if it cannot be opened, else kInvalidArgument naming file, tensor and what is
  // wrong.
  static Result<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;

  std::string path_;
  const std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace tandem
