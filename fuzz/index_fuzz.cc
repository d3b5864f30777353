// A weights index beside one good shard.
#include "memory_file.h"
#include "model/checkpoint.h"

namespace {

// One BF16 tensor "a" of two elements.
constexpr std::string_view kHeader =
    R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}      )";

const tandem::FuzzFolder& Folder() {
  static const tandem::FuzzFolder folder;
  static const bool written = [] {
    const uint64_t size = kHeader.size();
    std::string shard(reinterpret_cast<const char*>(&size), sizeof size);
    folder.Write("s.safetensors", shard + std::string(kHeader) + "abcd");
    return true;
  }();
  (void)written;
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tandem::FuzzFolder& folder = Folder();
  folder.Write("model.safetensors.index.json", data, size);
  const auto checkpoint = tandem::Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return 0;
  const tandem::TensorInfo* tensor = (*checkpoint)->Take("a", {2});
  if (tensor == nullptr || !(*checkpoint)->Finish().ok()) std::abort();
  return 0;
}
