// One .safetensors file: its header checked whole before any tensor is handed out, its data read on
// demand. Nothing is mapped, so that a file that shrinks or fails is an error and no signal. Knows
// no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// One row-major tensor and where its bytes lie.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  size_t bytes = 0;
  int file = 0;         // number of the file in its source
  uint64_t offset = 0;  // of the first byte in the file

  int64_t elements() const { return static_cast<int64_t>(bytes / DTypeSize(dtype)); }
};

std::string ShapeName(const std::vector<int64_t>& shape);  // "[3, 4]"

// The tensors of a header, in order of their data. `path` is for messages; the data are
// `data_bytes` bytes from `data_offset` in the file. Errors: kInvalidArgument naming file, tensor
// and what is wrong. Afterwards every tensor's bytes equal product(shape) * DTypeSize(dtype), and
// the tensors tile the data without overlap, hole or rest. Memory stays within a few times what
// the tensors' names need, whatever the header holds.
Result<std::vector<TensorInfo>> ParseSafetensorsHeader(const std::string& path,
                                                       std::string_view header,
                                                       uint64_t data_offset, uint64_t data_bytes);

// An open file. Any thread may read. Movable.
class SafetensorsFile {
 public:
  // Errors: kNotFound if it cannot be opened, else kInvalidArgument as above.
  static Result<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  // The header's tensors, in order of their data. Leaves the file without: call it once.
  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

  // Bytes [begin, begin + out.size()) of a tensor of this file. Errors: kInvalidArgument naming
  // file and tensor if the file has shrunk or cannot be read. REQUIRES: the range lies inside the
  // tensor.
  Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  int fd_ = -1;
  std::vector<TensorInfo> tensors_;
};

}  // namespace tandem
