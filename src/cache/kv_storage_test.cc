#include "cache/kv_storage.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem {
namespace {

TEST(KvStorage, LayersLieBehindEachOther) {
  constexpr int64_t kLayers = 3, kBlocks = 5, kBlockSize = 4, kSlotBytes = 84;
  KvStorage storage(kLayers, kBlocks, kBlockSize, kSlotBytes);
  constexpr int64_t kLayerBytes = kBlocks * kBlockSize * kSlotBytes;
  EXPECT_EQ(storage.bytes(), kLayers * kLayerBytes);
  for (int64_t l = 0; l < kLayers; ++l) {
    std::fill_n(storage.layer(l), kLayerBytes, static_cast<std::byte>(l + 1));
  }
  for (int64_t l = 0; l < kLayers; ++l) {
    EXPECT_EQ(
        std::count(storage.layer(l), storage.layer(l) + kLayerBytes, static_cast<std::byte>(l + 1)),
        kLayerBytes);
  }
}

TEST(KvStorage, MayBeEmpty) {
  EXPECT_EQ(KvStorage(4, 0, 16, 288).bytes(), 0);
}

}  // namespace
}  // namespace tandem
