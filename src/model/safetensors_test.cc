#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "model/test_folder.h"

namespace tandem {
namespace {

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(Safetensors, ReadsTensorsAtAnyAlignment) {
  const TestFolder folder;
  // The header's length (and with it the data's address) takes every residue modulo 4.
  for (int padding = 0; padding < 4; ++padding) {
    const std::string header =
        "{\"__metadata__\":{\"format\":\"pt\"}," + Entry("a", "U8", "[1]", "[0,1]") + "," +
        Entry("b", "BF16", "[2,3]", "[1,13]") + "," + Entry("c", "F32", "[2]", "[13,21]") + "," +
        Entry("d", "F32", "[0,5]", "[21,21]") + "," + Entry("e", "F8_E4M3", "[]", "[21,22]") + "}" +
        std::string(padding, ' ');
    Result<SafetensorsFile> opened =
        SafetensorsFile::Open(folder.WriteTensors("t.safetensors", header, 22));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    SafetensorsFile file = std::move(*opened);
    const std::vector<TensorInfo> tensors = file.TakeTensors();
    ASSERT_EQ(tensors.size(), 5u);
    const TensorInfo& b = tensors[1];  // in order of their data
    EXPECT_EQ(b.name, "b");
    EXPECT_EQ(b.dtype, DType::kBF16);
    EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(b.elements(), 6);
    EXPECT_EQ(b.offset, 8 + header.size() + 1);
    std::vector<std::byte> bytes(5);
    ASSERT_TRUE(file.Read(b, 6, bytes).ok());  // from row 1: byte 7 of the data
    for (int i = 0; i < 5; ++i) EXPECT_EQ(static_cast<int>(bytes[i]), 7 + i);
    EXPECT_EQ(tensors[2].name, "c");
    EXPECT_EQ(tensors[3].elements(), 0);
    EXPECT_TRUE(file.Read(tensors[3], 0, {}).ok());
    EXPECT_EQ(tensors[4].dtype, DType::kF8E4M3);
    EXPECT_TRUE(tensors[4].shape.empty());
  }
}

// A file that loses its end while it is open is an error with file and tensor; what is still there
// is read.
TEST(Safetensors, ReportsAFileThatHasShrunk) {
  const TestFolder folder;
  const std::string header =
      "{" + Entry("a", "U8", "[40]", "[0,40]") + "," + Entry("b", "U8", "[60]", "[40,100]") + "}";
  const std::string path = folder.WriteTensors("t.safetensors", header, 100);
  SafetensorsFile file = std::move(*SafetensorsFile::Open(path));
  const std::vector<TensorInfo> tensors = file.TakeTensors();
  std::filesystem::resize_file(path, 8 + header.size() + 50);
  std::vector<std::byte> bytes(40);
  EXPECT_TRUE(file.Read(tensors[0], 0, bytes).ok());
  EXPECT_TRUE(file.Read(tensors[1], 0, std::span(bytes).first(10)).ok());
  for (const size_t begin : {0, 1, 10, 20}) {
    const Status status = file.Read(tensors[1], begin, bytes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), path + ": tensor \"b\": the file has shrunk");
  }
  std::filesystem::resize_file(path, 0);
  EXPECT_FALSE(file.Read(tensors[0], 0, bytes).ok());
}

// Each row: the header, the bytes of data that follow it, and what the error says.
TEST(Safetensors, RefusesHostileHeaders) {
  const auto two = [](const std::string& first, const std::string& second) {
    return "{" + Entry("a", "U8", "[4]", first) + "," + Entry("b", "U8", "[4]", second) + "}";
  };
  const std::string huge = "9223372036854775807";
  const struct {
    std::string header;
    size_t data_bytes;
    const char* error;
  } kCases[] = {
      {"", 0, "not valid JSON"},
      {"{", 0, "not valid JSON"},
      {"{\"a\":\xff}", 0, "not valid JSON"},
      {std::string(100'000, '['), 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"7", 0, "not a JSON object"},
      {"{\"a\":[[[]]]}", 0, "\"a\": its entry is not an object"},
      {"{\"a\":{\"shape\":[" + Repeat("1,", 1'000'000) + "1]}}", 0, "\"a\": too many dimensions"},
      {"{\"a\":{" + Repeat("\"x\":[],", 1000) + "\"y\":0}}", 0, "\"a\": dtype is not a string"},
      {"{\"a\":{" + Repeat("\"x\":0,", 1000) + "\"y\":0}}", 0, "\"a\": too many dimensions"},
      {"{\"a\":" + Repeat("{\"b\":", 100'000), 0, "not valid JSON"},
      {"{\"__metadata__\":" + Repeat("[", 100'000), 0, "not valid JSON"},
      {"{\"__metadata__\":{\"a\":[1,2,{}]},\"b\":0}", 0, "\"b\": its entry is not an object"},
      {"{\"a\":3}", 0, "\"a\": its entry is not an object"},
      {two("[0,4]", "[4,8]"), 7, "\"b\": data_offsets [4, 8] are not inside the 7 bytes"},
      {two("[0,4]", "[4,8]"), 9, "1 bytes after the last tensor"},
      {two("[0,4]", "[3,7]"), 8, "\"b\" overlaps"},
      {two("[0,4]", "[0,4]"), 8, "overlaps"},
      {two("[0,4]", "[5,9]"), 9, "\"b\" leaves a hole"},
      {two("[4,0]", "[4,8]"), 8, "\"a\": data_offsets [4, 0] are not inside"},
      {two("[0,4]", "[4,18446744073709551615]"), 8, "\"b\": data_offsets [4, 1844674"},
      {two("[0,4]", "[-4,0]"), 8, "\"b\": data_offsets is not a pair"},
      {two("[0,4]", "[4.0,8.0]"), 8, "\"b\": data_offsets is not a pair"},
      {two("[0,4]", "[4,8,8]"), 8, "\"b\": data_offsets is not a pair"},
      {two("[0,4]", "3"), 8, "\"b\": data_offsets is not a pair"},
      {"{" + Entry("a", "F32", "[4]", "[0,8]") + "}", 8, "8 bytes of data where F32 [4] needs 16"},
      {"{" + Entry("a", "F31", "[2]", "[0,8]") + "}", 8, "unknown dtype \"F31\""},
      {"{" + Entry("a", "U8", "[-8]", "[0,8]") + "}", 8, "not a whole number"},
      {"{" + Entry("a", "U8", "[8.0]", "[0,8]") + "}", 8, "not a whole number"},
      {"{" + Entry("a", "U8", "8", "[0,8]") + "}", 8, "shape is not a list"},
      {"{" + Entry("a", "U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]") + "}", 8, "too many dimensions"},
      {"{" + Entry("a", "F32", "[4294967296,4294967296]", "[0,8]") + "}", 8, "overflows"},
      {"{" + Entry("a", "U8", "[" + huge + "0]", "[0,8]") + "}", 8, "not a whole number"},
      {"{\"a\":{\"dtype\":3,\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "dtype is not a string"},
      {"{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("a", "U8", "[4]", "[4,8]") + "}", 8,
       "\"a\" appears twice"},
      {"{" + Entry("x\\ny", "U8", "[4]", "[0,5]") + "}", 5, "\"x?y\": 5 bytes"},
  };
  const TestFolder folder;
  for (const auto& test : kCases) {
    const std::string path = folder.WriteTensors("t.safetensors", test.header, test.data_bytes);
    const Status status = SafetensorsFile::Open(path).status();
    const std::string shown = test.header.substr(0, 200) + " gave: " + status.message();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << shown;
    EXPECT_NE(status.message().find(path), std::string::npos) << shown;
    EXPECT_NE(status.message().find(test.error), std::string::npos) << shown;
  }
}

TEST(Safetensors, RefusesFilesThatCannotBeOne) {
  const TestFolder folder;
  EXPECT_EQ(SafetensorsFile::Open(folder.path() + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(SafetensorsFile::Open(folder.path()).ok());
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(SafetensorsFile::Open(pipe).ok());
  for (const std::string& bytes : {std::string(), std::string("1234567"),
                                   std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
                                   std::string("\xf8\xff\xff\xff\xff\xff\xff\x7f{}", 10),
                                   std::string("\x03\0\0\0\0\0\0\0{}", 10)}) {
    const Status status = SafetensorsFile::Open(folder.Write("t.safetensors", bytes)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bytes.size();
  }
}

// Every prefix of a good file is refused, never read beyond its end.
TEST(Safetensors, RefusesEveryTruncation) {
  const TestFolder folder;
  const std::string header =
      "{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("b", "BF16", "[2]", "[4,8]") + "}";
  const std::string path = folder.WriteTensors("t.safetensors", header, 8);
  ASSERT_TRUE(SafetensorsFile::Open(path).ok());
  for (size_t bytes = 8 + header.size() + 8; bytes-- > 0;) {
    std::filesystem::resize_file(path, bytes);
    EXPECT_FALSE(SafetensorsFile::Open(path).ok()) << bytes;
  }
}

}  // namespace
}  // namespace tandem
