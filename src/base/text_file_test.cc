#include "base/text_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace tandem {
namespace {

TEST(ReadTextFile, WholeFilesWithinTheBound) {
  const std::string path = testing::TempDir() + "/tandem_text_file";
  std::ofstream(path, std::ios::binary) << std::string("a\0b\n", 4);
  EXPECT_EQ(*ReadTextFile(path, 4), std::string("a\0b\n", 4));
  const Status status = ReadTextFile(path, 3).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("has 4 bytes, more than the 3"), std::string::npos);
}

TEST(ReadTextFile, WhatIsNoFileIsRefusedAndNothingWaits) {
  EXPECT_EQ(ReadTextFile(testing::TempDir() + "/tandem_absent", 9).status().code(),
            StatusCode::kNotFound);
  const std::string pipe = testing::TempDir() + "/tandem_pipe";
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, testing::TempDir(), std::string("/dev/zero")}) {
    EXPECT_EQ(ReadTextFile(path, 9).status().code(), StatusCode::kInvalidArgument) << path;
  }
}

TEST(ListSome, LongListsAreCut) {
  EXPECT_EQ(ListSome({"a", "b"}), "a, b");
  const std::string list = ListSome(std::vector<std::string>(25, "x"));
  EXPECT_EQ(list.substr(list.size() - 16), "x, x, and 5 more");
}

TEST(Quoted, HostileNamesStayOnTheirLine) {
  EXPECT_EQ(Quoted("a\nb\x1b\xff"), "\"a?b??\"");
  EXPECT_EQ(Quoted(std::string(500, 'x')).size(), 120u + 5);
}

}  // namespace
}  // namespace tandem
