#include "model/load_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "model/test_tensors.h"

namespace tandem {
namespace {

// Tensors whose bytes are a function of their place, and whose reads may be made to fail.
class FakeSource : public TensorSource {
 public:
  FakeSource() : TensorSource("fake") {}

  const TensorInfo* Add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.bytes = DTypeSize(dtype);
    for (const int64_t size : shape) info.bytes *= size;
    info.shape = std::move(shape);
    info.offset = end_;
    end_ += info.bytes;
    return &tensors_.emplace(name, Entry{std::move(info)}).first->second.info;
  }

  Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const override {
    const size_t first = tensor.offset + begin;
    ++reads;
    if (fail_at >= first && fail_at < first + out.size()) {
      return InvalidArgument("cannot read " + tensor.name);
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = At(first + i);
    return Status();
  }

  // e4m3 without NaN, finite floats.
  static std::byte At(size_t place) {
    return static_cast<std::byte>((place * 2654435761u >> 7) % 120);
  }

  size_t fail_at = SIZE_MAX;
  mutable std::atomic<int> reads = 0;

 private:
  size_t end_ = 0;
};

// One tensor larger than a job, in parts that no strip fits.
TEST(LoadQueue, JobsAndStripsMakeNoDifference) {
  FakeSource source;
  const int64_t rows = 20'011, columns = 1003;
  const TensorInfo* tensor = source.Add("large", DType::kBF16, {rows, columns});
  std::vector<std::byte> all(tensor->bytes);
  ASSERT_TRUE(source.Read(*tensor, 0, all).ok());
  const PackPart parts[] = {{{0, 7003}, {0, columns}},
                            {{7003, rows}, {10, columns}},
                            {{100, 17'000}, {5, 6}, /*transposed=*/true}};
  for (const int threads : {1, 3}) {
    LoadQueue queue;
    std::vector<PackedMatrix> loaded;
    for (const PackPart& part : parts) {
      loaded.emplace_back(part.matrix_columns(), part.matrix_depth(), WeightType::kBf16);
    }
    Buffer<std::byte> copy(tensor->bytes);
    queue.Add({&source,
               tensor,
               nullptr,
               {{parts[0], &loaded[0]}, {parts[1], &loaded[1]}, {parts[2], &loaded[2]}},
               {},
               {}});
    queue.Add({&source, tensor, nullptr, {}, {}, copy.span()});
    ASSERT_TRUE(queue.Run(threads, nullptr).ok());
    EXPECT_EQ(std::memcmp(copy.data(), all.data(), all.size()), 0);
    for (size_t i = 0; i < std::size(parts); ++i) {
      PackedMatrix whole(parts[i].matrix_columns(), parts[i].matrix_depth(), WeightType::kBf16);
      PackRows(DType::kBF16, all.data(), columns, {0, rows}, parts[i], whole);
      ExpectSame(loaded[i], whole);
    }
  }
}

TEST(LoadQueue, TheFirstFailureEndsTheLoad) {
  for (const int threads : {1, 4}) {
    FakeSource source;
    std::vector<Buffer<std::byte>> copies;
    LoadQueue queue;
    for (int i = 0; i < 1000; ++i) {
      const TensorInfo* tensor = source.Add(std::to_string(i), DType::kBF16, {10, 3});
      copies.emplace_back(tensor->bytes);
      queue.Add({&source, tensor, nullptr, {}, {}, copies.back().span()});
    }
    source.fail_at = 60 * 17 + 5;
    const Status status = queue.Run(threads, nullptr);
    EXPECT_EQ(status.message(), "cannot read 17");
    EXPECT_TRUE(threads > 1 || source.reads == 18);
  }
}

TEST(LoadQueue, ReadsInTheOrderOfTheFile) {
  FakeSource source;
  std::vector<Buffer<std::byte>> copies;
  LoadQueue queue;
  std::vector<const TensorInfo*> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back(source.Add(std::to_string(i), DType::kBF16, {2}));
  for (int i = 0; i < 100; ++i) {
    copies.emplace_back(4);
    queue.Add({&source, tensors[i * 37 % 100], nullptr, {}, {}, copies.back().span()});
  }
  source.fail_at = 4 * 60;
  EXPECT_FALSE(queue.Run(1, nullptr).ok());
  EXPECT_EQ(source.reads, 61);
}

TEST(LoadQueue, NothingToLoad) {
  LoadQueue queue;
  EXPECT_TRUE(queue.Run(2, nullptr).ok());
}

}  // namespace
}  // namespace tandem
