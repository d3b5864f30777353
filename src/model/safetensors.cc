#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text_file.h"

namespace tandem {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the file format is little-endian");

// The format's own limit on its header.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// More dimensions than any model's tensor has.
constexpr size_t kMaxDimensions = 8;

struct DTypeEntry {
  DType dtype;
  const char* name;
  size_t size;
};
constexpr DTypeEntry kDTypes[] = {
    {DType::kF64, "F64", 8},        {DType::kF32, "F32", 4},        {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},      {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E8M0, "F8_E8M0", 1}, {DType::kI64, "I64", 8},        {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},        {DType::kI8, "I8", 1},          {DType::kU64, "U64", 8},
    {DType::kU32, "U32", 4},        {DType::kU16, "U16", 2},        {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
};

const DTypeEntry& Entry(DType dtype) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.dtype == dtype) return entry;
  }
  CHECK(false);
  return kDTypes[0];
}

// No list of an entry is longer than a shape may be.
constexpr int kMaxListLength = 64;

// Fills dtype and shape of `tensor`, and the bytes that they ask for. Empty if all is well, else
// what is wrong.
std::string ParseTypeAndShape(const json& entry, TensorInfo& tensor) {
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return "dtype is not a string";
  const std::string& dtype_name = dtype->get_ref<const std::string&>();
  const auto known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const DTypeEntry& e) { return dtype_name == e.name; });
  if (known == std::end(kDTypes)) return "unknown dtype " + Quoted(dtype_name);
  tensor.dtype = known->dtype;

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return "shape is not a list";
  if (shape->size() > kMaxDimensions) return "too many dimensions";
  int64_t bytes = static_cast<int64_t>(known->size);
  for (const json& size : *shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return "shape has a size that is not a whole number";
    }
    tensor.shape.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes)) return "shape overflows";
  }
  tensor.bytes = static_cast<size_t>(bytes);
  return "";
}

// Fills `tensor` from its header entry, its offset counted from the data's first byte. Empty if all
// is well, else what is wrong.
std::string ParseTensor(const json& entry, uint64_t data_bytes, TensorInfo& tensor) {
  if (!entry.is_object()) return "its entry is not an object";
  if (std::string wrong = ParseTypeAndShape(entry, tensor); !wrong.empty()) return wrong;
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return "data_offsets is not a pair of whole numbers";
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>();
  const uint64_t end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
           "] are not inside the " + std::to_string(data_bytes) + " bytes of data";
  }
  if (end - begin != tensor.bytes) {
    return std::to_string(end - begin) + " bytes of data where " + DTypeName(tensor.dtype) + " " +
           ShapeName(tensor.shape) + " needs " + std::to_string(tensor.bytes);
  }
  tensor.offset = begin;
  return "";
}

// Takes the header's entries one by one as the parser finishes them, and stops it at the first
// wrong one: the document as a whole never exists in memory, where it would take many times its
// own size.
class HeaderReader {
 public:
  struct Stop {};

  HeaderReader(uint64_t data_bytes, std::vector<TensorInfo>& tensors)
      : data_bytes_(data_bytes), tensors_(tensors) {}

  // What is wrong after a Stop.
  const std::string& error() const { return error_; }

  // For json::parse. Depth 0 is the document, 1 its entries, 2 their fields, 3 list elements. What
  // is false is not kept.
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    const bool whole = event == Event::object_end || event == Event::array_end;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (depth == 0) {
      if (event == Event::array_start || event == Event::value) {
        Fail("the header is not a JSON object");
      }
      return true;
    }
    if (depth == 1 && event == Event::key) {
      name_ = parsed.get<std::string>();
      skipping_ = name_ == "__metadata__";
      return !skipping_;
    }
    if (skipping_) return false;
    if (depth == 1 && (event == Event::array_start || event == Event::value)) {
      Fail("tensor " + Quoted(name_) + ": its entry is not an object");
    }
    if (depth == 1 && event == Event::object_end) {
      AddTensor(parsed);
      return false;
    }
    if (begins) values_ = 0;
    if (!whole && depth > 1 && ++values_ > kMaxListLength) {
      Fail("tensor " + Quoted(name_) + ": too many dimensions");
    }
    return true;
  }

 private:
  [[noreturn]] void Fail(std::string error) {
    error_ = std::move(error);
    throw Stop();
  }

  void AddTensor(const json& entry) {
    TensorInfo tensor;
    if (std::string wrong = ParseTensor(entry, data_bytes_, tensor); !wrong.empty()) {
      Fail("tensor " + Quoted(name_) + ": " + wrong);
    }
    if (!names_.insert(name_).second) Fail("tensor " + Quoted(name_) + " appears twice");
    tensor.name = name_;
    tensors_.push_back(std::move(tensor));
  }

  const uint64_t data_bytes_;
  std::vector<TensorInfo>& tensors_;
  std::set<std::string> names_;
  std::string name_, error_;
  bool skipping_ = false;
  int values_ = 0;  // since the last list or object began
};

// The tensors must tile the data: an overlap or a hole means a header that belongs to other data.
// Empty if they do.
std::string CheckTiling(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != next) {
      return "tensor " + Quoted(tensor.name) +
             (tensor.offset < next ? " overlaps the one before it" : " leaves a hole before it");
    }
    next += tensor.bytes;
  }
  return next == data_bytes ? ""
                            : std::to_string(data_bytes - next) + " bytes after the last tensor";
}

// Reads exactly `bytes` bytes from `offset`. Empty if it could, else why not.
std::string ReadAt(int fd, uint64_t offset, size_t bytes, void* out) {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, next, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return "the file has shrunk";
    next += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return "";
}

}  // namespace

size_t DTypeSize(DType dtype) {
  return Entry(dtype).size;
}
const char* DTypeName(DType dtype) {
  return Entry(dtype).name;
}

std::string ShapeName(const std::vector<int64_t>& shape) {
  std::string name = "[";
  for (size_t i = 0; i < shape.size(); ++i) name += (i ? ", " : "") + std::to_string(shape[i]);
  return name + "]";
}

Result<std::vector<TensorInfo>> ParseSafetensorsHeader(const std::string& path,
                                                       std::string_view header,
                                                       uint64_t data_offset, uint64_t data_bytes) {
  std::vector<TensorInfo> tensors;
  HeaderReader reader(data_bytes, tensors);
  try {
    // A reference: the parser copies its callback.
    const json rest = json::parse(header.begin(), header.end(), std::ref(reader));
  } catch (const HeaderReader::Stop&) {
    return InvalidArgument(path + ": " + reader.error());
  } catch (const json::exception& e) {
    return InvalidArgument(path + ": the header is not valid JSON: " + Quoted(e.what()));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  if (std::string wrong = CheckTiling(tensors, data_bytes); !wrong.empty()) {
    return InvalidArgument(path + ": " + wrong);
  }
  for (TensorInfo& tensor : tensors) tensor.offset += data_offset;
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a pipe by mistake must not wait for a writer.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return NotFound(path + ": " + std::strerror(errno));
  struct stat info;
  uint64_t header_bytes = 0;
  if (fstat(file.fd_, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size < static_cast<off_t>(sizeof header_bytes)) {
    return InvalidArgument(path + ": not a safetensors file, shorter than its 8-byte length");
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  std::string wrong = ReadAt(file.fd_, 0, sizeof header_bytes, &header_bytes);
  if (!wrong.empty()) return InvalidArgument(path + ": " + wrong);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - sizeof header_bytes) {
    return InvalidArgument(path + ": its header claims " + std::to_string(header_bytes) +
                           " bytes; the file has " + std::to_string(file_bytes));
  }
  std::string header(header_bytes, '\0');
  wrong = ReadAt(file.fd_, sizeof header_bytes, header_bytes, header.data());
  if (!wrong.empty()) return InvalidArgument(path + ": " + wrong);
  const uint64_t data_offset = sizeof header_bytes + header_bytes;
  ASSIGN_OR_RETURN(file.tensors_,
                   ParseSafetensorsHeader(path, header, data_offset, file_bytes - data_offset));
  return file;
}

Status SafetensorsFile::Read(const TensorInfo& tensor, size_t begin,
                             std::span<std::byte> out) const {
  CHECK(begin <= tensor.bytes && out.size() <= tensor.bytes - begin);
  const std::string wrong = ReadAt(fd_, tensor.offset + begin, out.size(), out.data());
  if (wrong.empty()) return Status();
  return InvalidArgument(path_ + ": tensor " + Quoted(tensor.name) + ": " + wrong);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace tandem
