// Model folders for the tests of src/text: the bundled model's, and small made ones.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace tandem {

inline std::string TinyModel() {
  return TANDEM_SOURCE_DIR "/models/tandem-tiny";
}

inline nlohmann::ordered_json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return nlohmann::ordered_json::parse(file);
}

// A folder with the given files, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder(std::initializer_list<std::pair<std::string, std::string>> files) {
    std::string pattern = testing::TempDir() + "/tandem_text_XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
    for (const auto& [name, content] : files) std::ofstream(path_ + "/" + name) << content;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tandem
