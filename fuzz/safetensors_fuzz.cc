// A safetensors file: opened, and every byte of every tensor read.
#include <vector>

#include "memory_file.h"
#include "model/safetensors.h"

using tandem::FuzzFolder;
using tandem::SafetensorsFile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const FuzzFolder folder;
  folder.Write("model.safetensors", data, size);
  auto file = SafetensorsFile::Open(folder.path() + "/model.safetensors");
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  size_t total = 0;
  for (const tandem::TensorInfo& tensor : file->TakeTensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    if (!file->Read(tensor, 0, bytes).ok()) std::abort();
    total += tensor.bytes;
  }
  if (total > size) std::abort();
  return 0;
}
