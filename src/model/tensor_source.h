// Where a loader's tensors come from, with a book of which of them were used. Knows names, shapes
// and formats, not their meaning.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/safetensors.h"

namespace tandem {

// The formats that a tensor may have.
enum class TensorFormats {
  kPlain,       // BF16 or F32
  kPlainOrFp8,  // also F8_E4M3
  kScales,      // F32 or F8_E8M0
};

// The loader takes every tensor that it needs with the shape that it expects and goes on after a
// failure; Finish() then reports everything that is wrong at once. The book is one thread's; any
// thread may Read at any time. Tensors are valid as long as the source.
class TensorSource {
 public:
  // `what` begins the report of Finish(): the folder.
  explicit TensorSource(std::string what) : what_(std::move(what)) {}
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // The tensor, now counted as used; or nullptr, with the reason kept for Finish(), if it is
  // missing, has another shape, or has none of `formats`. Taking one twice is legal.
  const TensorInfo* Take(const std::string& name, const std::vector<int64_t>& shape,
                         TensorFormats formats = TensorFormats::kPlain);

  // Keeps a taken tensor for Finish() as one of a format that cannot be used, and why.
  void Refuse(const TensorInfo& tensor, const std::string& why);

  virtual bool Has(const std::string& name) const { return tensors_.contains(name); }
  // Whether any tensor's name starts with `prefix`.
  virtual bool HasPrefix(const std::string& prefix) const;

  // Counts every tensor whose name starts with `prefix` as used, unread: a part that is left out on
  // purpose.
  void SkipPrefix(const std::string& prefix);

  // OK if every Take succeeded and every tensor was taken or skipped ("*.rotary_emb.inv_freq",
  // which follow from the config, need not be). Else one kInvalidArgument that lists what is wrong
  // by kind.
  Status Finish() const;

  // Bytes [begin, begin + out.size()) of a taken tensor, in whole elements. Errors name file and
  // tensor. Thread-safe. REQUIRES: the range lies inside the tensor.
  virtual Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const = 0;

 protected:
  struct Entry {
    TensorInfo info;
    bool used = false;
  };

  // The tensor of that name, or nullptr. A source without files makes it, in the shape asked for.
  virtual Entry* Find(const std::string& name, const std::vector<int64_t>& shape,
                      TensorFormats formats);

  std::map<std::string, Entry> tensors_;

 private:
  const std::string what_;
  // Lines of the report.
  std::set<std::string> missing_, wrong_shape_, wrong_format_;
};

}  // namespace tandem
