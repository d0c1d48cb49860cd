#include "kv_code/coder.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>

#include "base/prng.h"
#include "kv_code/galois.h"

namespace trimtab::kv_code {
namespace {

using Buffers = std::array<std::vector<std::byte>, kShards>;

Buffers encoded(const Coder& with, std::size_t bytes, std::uint64_t seed) {
  Buffers shards;
  base::Prng prng(seed);
  Coder::Sources data{};
  for (std::uint32_t s = 0; s < kShards; ++s) {
    shards[s].resize(bytes);
    if (s >= kData) continue;
    for (std::byte& byte : shards[s]) byte = std::byte{static_cast<std::uint8_t>(prng.below(256))};
    data[s] = shards[s].data();
  }
  with.encode(data, {shards[kData].data(), shards[kData + 1].data()}, bytes);
  return shards;
}

TEST(GaloisTest, IsAField) {
  for (std::uint32_t a = 1; a < 256; ++a) {
    const auto x = static_cast<std::uint8_t>(a);
    EXPECT_EQ(kGalois.multiply(x, kGalois.inverse(x)), 1);
    for (std::uint32_t b = 1; b < 256; b += 7) {
      const auto y = static_cast<std::uint8_t>(b);
      EXPECT_EQ(kGalois.multiply(x, y ^ 0x53), kGalois.multiply(x, y) ^ kGalois.multiply(x, 0x53));
    }
  }
  EXPECT_EQ(kGalois.multiply(0x80, 2), 0x1d);  // the polynomial
}

TEST(CoderTest, ParityIsTheSumAndTheWeightedSum) {
  const Coder portable(Coder::Form::kPortable);
  const Buffers shards = encoded(portable, 33, 1);
  for (std::size_t i = 0; i < 33; ++i) {
    std::uint8_t sum = 0, weighted = 0;
    for (std::uint32_t s = 0; s < kData; ++s) {
      const auto byte = std::to_integer<std::uint8_t>(shards[s][i]);
      sum ^= byte;
      weighted ^= kGalois.multiply(byte, static_cast<std::uint8_t>(s < 8 ? 1 << s : s == 8 ? 0x1d : 0x3a));
    }
    EXPECT_EQ(std::to_integer<std::uint8_t>(shards[10][i]), sum);
    EXPECT_EQ(std::to_integer<std::uint8_t>(shards[11][i]), weighted);
  }
}

/// All 78 losses and the whole, every subset of them wanted, all forms, and lengths around vector widths.
TEST(CoderTest, AnyTenGiveBackTheOthers) {
  const Coder fast, tables(Coder::Form::kTables), portable(Coder::Form::kPortable);
  for (const std::size_t bytes : {1U, 15U, 16U, 31U, 64U, 100U, 2'288U}) {
    const Buffers whole = encoded(fast, bytes, bytes);
    EXPECT_EQ(whole, encoded(tables, bytes, bytes));
    EXPECT_EQ(whole, encoded(portable, bytes, bytes));
    for (std::uint32_t a = 0; a < kShards; ++a) {
      for (std::uint32_t b = a; b < kShards; ++b) {
        const auto lost = static_cast<ShardSet>(1U << a | 1U << b);
        for (const ShardSet wanted : {lost, static_cast<ShardSet>(1U << a), static_cast<ShardSet>(1U << b)}) {
          for (const Coder* with : {&fast, &tables, &portable}) {
            Buffers broken = whole;
            std::array<std::byte*, kShards> shards{};
            for (std::uint32_t s = 0; s < kShards; ++s) {
              if (has(lost, s)) broken[s].assign(bytes, std::byte{0xee});
              shards[s] = broken[s].data();
            }
            with->recover(shards, static_cast<ShardSet>(kAllShards & ~lost), wanted, bytes);
            for (std::uint32_t s = 0; s < kShards; ++s) {
              if (!has(lost, s) || has(wanted, s)) {
                ASSERT_EQ(broken[s], whole[s]) << a << " " << b << " " << s << " of " << bytes;
              } else {
                ASSERT_EQ(broken[s], std::vector(bytes, std::byte{0xee}));
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trimtab::kv_code
