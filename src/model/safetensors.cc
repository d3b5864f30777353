#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/text_file.h"

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

// The header as JSON. Names that appear twice in one object are an error, which json::parse alone
// would hide.
Result<json> ParseHeader(const std::string& path, const char* begin, size_t size) {
  std::set<std::string> names;
  std::string duplicate;
  const auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get_ref<const std::string&>()).second && duplicate.empty()) {
      duplicate = parsed.get_ref<const std::string&>();
    }
    return true;
  };
  json header;
  try {
    header = json::parse(begin, begin + size, callback);
  } catch (const json::exception& e) {
    return InvalidArgument(path + ": the header is not valid JSON: " + Quoted(e.what()));
  }
  if (!header.is_object()) return InvalidArgument(path + ": the header is not a JSON object");
  if (!duplicate.empty()) {
    return InvalidArgument(path + ": tensor " + Quoted(duplicate) + " appears twice");
  }
  return header;
}

// Fills dtype and shape of `view`, and the bytes that they ask for. Empty if all is well, else what
// is wrong.
std::string ParseTypeAndShape(const json& entry, TensorView& view) {
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return "dtype is not a string";
  const std::string& dtype_name = dtype->get_ref<const std::string&>();
  const auto known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const DTypeEntry& e) { return dtype_name == e.name; });
  if (known == std::end(kDTypes)) return "unknown dtype " + Quoted(dtype_name);
  view.dtype = known->dtype;

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return "shape is not a list";
  if (shape->size() > kMaxDimensions) return "too many dimensions";
  int64_t bytes = static_cast<int64_t>(known->size);
  for (const json& size : *shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return "shape has a size that is not a whole number";
    }
    view.shape.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(bytes, view.shape.back(), &bytes)) return "shape overflows";
  }
  view.bytes = static_cast<size_t>(bytes);
  return "";
}

// Fills `view` from its header entry. Empty if all is well, else what is wrong.
std::string ParseTensor(const json& entry, const std::byte* data, size_t data_bytes,
                        TensorView& view) {
  if (!entry.is_object()) return "its entry is not an object";
  if (std::string wrong = ParseTypeAndShape(entry, view); !wrong.empty()) return wrong;
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
  if (end - begin != view.bytes) {
    return std::to_string(end - begin) + " bytes of data where " + DTypeName(view.dtype) + " " +
           ShapeName(view.shape) + " needs " + std::to_string(view.bytes);
  }
  view.data = data + begin;
  return "";
}

// The tensors must tile the data: an overlap or a hole means a header that belongs to other data.
Status CheckTiling(const std::string& path, const std::map<std::string, TensorView>& tensors,
                   const std::byte* data, size_t data_bytes) {
  std::vector<const TensorView*> order;
  for (const auto& [name, view] : tensors) order.push_back(&view);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return std::pair(a->data, a->bytes) < std::pair(b->data, b->bytes);
  });
  const std::byte* next = data;
  for (const TensorView* view : order) {
    if (view->data != next) {
      return InvalidArgument(
          path + ": tensor " + Quoted(view->name) +
          (view->data < next ? " overlaps the one before it" : " leaves a hole before it"));
    }
    next += view->bytes;
  }
  if (next != data + data_bytes) {
    return InvalidArgument(path + ": " + std::to_string(data + data_bytes - next) +
                           " bytes after the last tensor");
  }
  return Status();
}

void Unmap(const std::byte* mapping, size_t bytes) {
  if (mapping) munmap(const_cast<std::byte*>(mapping), bytes);
}

struct Mapping {
  const std::byte* data;
  size_t bytes;
};

Result<Mapping> MapFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NotFound(path + ": " + std::strerror(errno));
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 8) {
    close(fd);
    return InvalidArgument(path + ": not a safetensors file, shorter than its 8-byte length");
  }
  const size_t bytes = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (mapping == MAP_FAILED) return InvalidArgument(path + ": " + std::strerror(error));
  return Mapping{static_cast<const std::byte*>(mapping), bytes};
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

void ReadFloats(const TensorView& tensor, int64_t begin, std::span<float> out) {
  CHECK(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16);
  CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tensor.elements());
  if (out.empty()) return;
  if (tensor.dtype == DType::kF32) {
    std::memcpy(out.data(), tensor.data + begin * sizeof(float), out.size_bytes());
    return;
  }
  const std::byte* source = tensor.data + begin * sizeof(BFloat16);
  for (size_t i = 0; i < out.size(); ++i) {
    BFloat16 value;
    std::memcpy(&value, source + i * sizeof value, sizeof value);
    out[i] = value.ToFloat();
  }
}

void ReadBFloat16(const TensorView& tensor, int64_t begin, std::span<BFloat16> out) {
  CHECK(tensor.dtype == DType::kBF16);
  CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tensor.elements());
  if (out.empty()) return;
  std::memcpy(out.data(), tensor.data + begin * sizeof(BFloat16), out.size_bytes());
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const Mapping mapping, MapFile(path));
  SafetensorsFile file;
  file.path_ = path;
  file.mapping_ = mapping.data;
  file.mapping_bytes_ = mapping.bytes;

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping.data, sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > mapping.bytes - sizeof header_bytes) {
    return InvalidArgument(path + ": its header claims " + std::to_string(header_bytes) +
                           " bytes; the file has " + std::to_string(mapping.bytes));
  }
  const std::byte* data = mapping.data + sizeof header_bytes + header_bytes;
  const size_t data_bytes = mapping.bytes - sizeof header_bytes - header_bytes;
  ASSIGN_OR_RETURN(
      const json header,
      ParseHeader(path, reinterpret_cast<const char*>(mapping.data) + 8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    TensorView view;
    view.name = name;
    if (std::string wrong = ParseTensor(entry, data, data_bytes, view); !wrong.empty()) {
      return InvalidArgument(path + ": tensor " + Quoted(name) + ": " + wrong);
    }
    file.tensors_.emplace(name, std::move(view));
  }
  RETURN_IF_ERROR(CheckTiling(path, file.tensors_, data, data_bytes));
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this == &other) return *this;
  Unmap(mapping_, mapping_bytes_);
  path_ = std::move(other.path_);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  tensors_ = std::move(other.tensors_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  Unmap(mapping_, mapping_bytes_);
}

}  // namespace tandem
