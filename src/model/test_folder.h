// A folder for one test's files, removed with its contents at the end. For tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = testing::TempDir() + "tandem_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }

  // A safetensors file with the given header text and `data_bytes` bytes 0, 1, 2, ... of data.
  std::string WriteTensors(const std::string& name, const std::string& header,
                           size_t data_bytes) const {
    std::string bytes(8, '\0');
    const uint64_t header_bytes = header.size();
    std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
    bytes += header;
    for (size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
    return Write(name, bytes);
  }

 private:
  std::string path_;
};

}  // namespace tandem
