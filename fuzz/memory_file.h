// Folders and files for fuzz targets: readers take paths. In memory, so that a run writes no disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tandem {

// One folder per process, removed at its end.
class FuzzFolder {
 public:
  FuzzFolder() {
    char name[] = "/dev/shm/tandem_fuzz_XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path_ = name;
  }
  ~FuzzFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }

  void Write(const std::string& name, const uint8_t* data, size_t size) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    if (!file.flush()) std::abort();
  }
  void Write(const std::string& name, std::string_view text) const {
    Write(name, reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }

 private:
  std::string path_;
};

}  // namespace tandem
