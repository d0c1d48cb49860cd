#include "kv_code/stripe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/prng.h"

namespace trimtab::kv_code {
namespace {

constexpr BlockKey kKey{0x1122334455667788, 0x99aabbccddeeff00};

StripeLayout layout_of(std::vector<std::int64_t> layers, std::int64_t padding = 0) {
  model::KvLayout kv;
  for (const std::int64_t bytes : layers) kv.layer_bytes.push_back(base::Bytes{bytes});
  kv.block_bytes = base::Bytes{std::accumulate(layers.begin(), layers.end(), padding)};
  auto layout = StripeLayout::make(kv);
  EXPECT_TRUE(layout) << layout.error().message;
  return std::move(*layout);
}

std::vector<std::byte> random_block(std::size_t bytes, std::uint64_t seed) {
  base::Prng prng(seed);
  std::vector<std::byte> block(bytes);
  for (std::byte& byte : block) byte = std::byte{static_cast<std::uint8_t>(prng.below(256))};
  return block;
}

struct Stripe {
  explicit Stripe(const StripeLayout& layout, std::span<const std::byte> block, BlockKey key = kKey) {
    Shards spans;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      bytes[s].resize(layout.shard_bytes);
      spans[s] = bytes[s];
    }
    write_shards(layout, key, block, spans);
  }
  std::array<std::vector<std::byte>, kShards> bytes;
};

void give(StripeReader& reader, Stripe& stripe, ShardSet which) {
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (has(which, s)) reader.arrived(s, stripe.bytes[s]);
}

TEST(StripeTest, OfTheV41BlockIsAThousandthLonger) {
  const StripeLayout layout = layout_of({22'784, 22'784, 22'784, 22'784, 22'912});
  EXPECT_EQ(layout.block_bytes, 114'048U);
  EXPECT_EQ(layout.layers[0].slice_bytes, 2'288U);
  EXPECT_LT(static_cast<double>(layout.shard_bytes * kData), 1.015 * 114'048);
}

RC_GTEST_PROP(StripeTest, AnyTenShardsGiveBackTheBlock, ()) {
  const auto sizes = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 3'000)));
  const StripeLayout layout =
      layout_of({sizes.begin(), sizes.begin() + std::min<std::ptrdiff_t>(255, std::ssize(sizes))},
                *rc::gen::inRange(0, 200));
  const auto block = random_block(layout.block_bytes, *rc::gen::arbitrary<std::uint64_t>());
  Stripe stripe(layout, block);
  const auto a = *rc::gen::inRange(0U, kShards), b = *rc::gen::inRange(0U, kShards);
  StripeReader reader(layout, kKey);
  give(reader, stripe, static_cast<ShardSet>(kAllShards & ~(1U << a | 1U << b)));
  RC_ASSERT(reader.complete());
  std::vector<std::byte> out(layout.block_bytes);
  RC_ASSERT(reader.assemble_all(out, coder()).has_value());
  RC_ASSERT(out == block);
}

/// Shards of two writings and damaged ones, in any order, placed as they come: the block is that of the one
/// writing that has ten, and layers that were handed out before are not touched.
RC_GTEST_PROP(StripeTest, WhatIsPlacedAtOnceIsOfOneWritingInTheEnd, ()) {
  const StripeLayout layout = layout_of({9'000, 20'000, 12'345}, 77);
  const auto block = random_block(layout.block_bytes, 5), other_block = random_block(layout.block_bytes, 6);
  Stripe stripe(layout, block), other(layout, other_block);
  const auto a = *rc::gen::inRange(0U, kShards), b = *rc::gen::inRange(0U, kShards);
  const auto from_layer = *rc::gen::inRange(0U, 3U);
  stripe.bytes[b][layout.layers[2].slice_offset] ^= std::byte{8};
  std::vector<std::byte> out(layout.block_bytes, std::byte{0x77});
  StripeReader reader(layout, kKey);
  reader.place_into(out, from_layer);
  std::vector<std::uint32_t> order(kShards);
  std::iota(order.begin(), order.end(), 0U);
  base::Prng(*rc::gen::arbitrary<std::uint64_t>()).shuffle(std::span(order));
  for (const std::uint32_t s : order) reader.arrived(s, s == a ? other.bytes[s] : stripe.bytes[s]);
  RC_ASSERT(reader.complete());
  const std::size_t begin = layout.layers[from_layer].offset;
  RC_ASSERT(std::all_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(begin),
                        [](std::byte byte) { return byte == std::byte{0x77}; }));
  RC_ASSERT(reader.assemble_all(out, coder()).has_value());
  RC_ASSERT(out == block);
  RC_ASSERT(reader.slices_match(out));
  // What was computed is checked where it lies.
  for (const std::uint32_t s : {a, b}) {
    if (s >= kData) continue;
    const StripeLayout::Layer& layer = layout.layers[2];
    std::byte& one = out[layer.offset + s * layer.slice_bytes];
    one ^= std::byte{1};
    RC_ASSERT(!reader.slices_match(out));
    one ^= std::byte{1};
  }
}

/// The eleventh shard is of another writing and late: what was computed in its place, and handed out, stays.
TEST(StripeTest, ALateShardOfAnotherWritingTouchesNoLayerThatIsReady) {
  const StripeLayout layout = layout_of({9'000, 20'000, 12'345});
  const auto block = random_block(layout.block_bytes, 5);
  Stripe stripe(layout, block), other(layout, random_block(layout.block_bytes, 6));
  constexpr std::uint32_t kLate = 3;
  const std::size_t first_piece = layout.layers[1].slice_offset;
  StripeReader reader(layout, kKey);
  std::vector<std::byte> out(layout.block_bytes);
  reader.place_into(out, 0);
  for (std::uint32_t s = 0; s < kShards - 1; ++s)
    if (s != kLate) reader.arrived(s, std::span(stripe.bytes[s]).first(first_piece));
  ASSERT_EQ(reader.layers_ready(), 1U);
  reader.assemble(0, std::span(out).first(9'000), coder());
  ASSERT_TRUE(std::equal(out.begin(), out.begin() + 9'000, block.begin()));
  reader.arrived(kLate, std::span(other.bytes[kLate]).first(first_piece));
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 9'000, block.begin()));
  give(reader, other, 1U << kLate);
  give(reader, stripe, static_cast<ShardSet>(kAllShards & ~(1U << kLate | 1U << 11)));
  ASSERT_TRUE(reader.complete());
  for (std::uint32_t l = 1; l < layout.layers.size(); ++l)
    reader.assemble(l, std::span(out).subspan(layout.layers[l].offset, layout.layers[l].bytes), coder());
  EXPECT_EQ(out, block);
  EXPECT_TRUE(reader.slices_match(out));
  EXPECT_EQ(reader.to_rewrite(), static_cast<ShardSet>(1U << kLate));
}

RC_GTEST_PROP(StripeTest, LayersComeAsTenShardsGrow, ()) {
  const StripeLayout layout = layout_of({500, 1'000, 40, 700});
  const auto block = random_block(layout.block_bytes, 3);
  Stripe stripe(layout, block);
  StripeReader reader(layout, kKey);
  std::array<std::size_t, kShards> have{};
  const auto steps = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 12), rc::gen::inRange(1, 120)));
  for (const auto& [shard, more] : steps) {
    const auto s = static_cast<std::uint32_t>(shard);
    have[s] = std::min(layout.shard_bytes, have[s] + static_cast<std::size_t>(more));
    reader.arrived(s, std::span(stripe.bytes[s]).first(have[s]));
  }
  std::uint32_t ready = 0;
  for (const StripeLayout::Layer& layer : layout.layers) {
    const auto whole = std::ranges::count_if(
        have, [&](std::size_t bytes) { return bytes >= layer.slice_offset + layer.slice_bytes; });
    if (whole < static_cast<std::ptrdiff_t>(kData)) break;
    ++ready;
  }
  RC_ASSERT(reader.layers_ready() == ready);
  for (std::uint32_t l = 0; l < ready; ++l) {
    std::vector<std::byte> out(layout.layers[l].bytes);
    reader.assemble(l, out, coder());
    RC_ASSERT(std::ranges::equal(out, std::span(block).subspan(layout.layers[l].offset, out.size())));
  }
}

/// One byte of one or two shards is changed, anywhere: the block is still right, and the shards are named.
RC_GTEST_PROP(StripeTest, AFlippedByteIsFoundWhereverItIs, ()) {
  const StripeLayout layout = layout_of({300, 450});
  const auto block = random_block(layout.block_bytes, 4);
  Stripe stripe(layout, block);
  const auto shard = *rc::gen::inRange(0U, kShards);
  const auto at = *rc::gen::inRange<std::size_t>(0, layout.shard_bytes);
  // The filling between header and slices is nobody's.
  const std::size_t used = 40 + 3 * 8;
  RC_PRE(at < used || at >= layout.header_bytes);
  stripe.bytes[shard][at] ^= std::byte{static_cast<std::uint8_t>(*rc::gen::inRange(1, 256))};
  StripeReader reader(layout, kKey);
  give(reader, stripe, kAllShards);
  std::vector<std::byte> out(layout.block_bytes);
  RC_ASSERT(reader.assemble_all(out, coder()).has_value());
  RC_ASSERT(out == block);
  RC_ASSERT(reader.to_rewrite() == static_cast<ShardSet>(1U << shard));
  RC_ASSERT(reader.fault(shard).has_value());
}

TEST(StripeTest, SwappedForeignAndShortShardsAreMissing) {
  const StripeLayout layout = layout_of({640});
  const auto block = random_block(640, 5);
  Stripe stripe(layout, block);
  Stripe foreign(layout, random_block(640, 6), BlockKey{1, 2});
  StripeReader reader(layout, kKey);
  reader.arrived(0, stripe.bytes[1]);  // swapped
  reader.arrived(1, foreign.bytes[1]);
  give(reader, stripe, kAllShards & ~0b11);
  reader.arrived(11, std::span(stripe.bytes[11]));
  EXPECT_EQ(reader.fault(0), ShardFault::kForeign);
  EXPECT_EQ(reader.fault(1), ShardFault::kForeign);
  std::vector<std::byte> out(640);
  ASSERT_TRUE(reader.assemble_all(out, coder()));
  EXPECT_EQ(out, block);

  StripeReader torn(layout, kKey);
  give(torn, stripe, kAllShards & ~0b111);
  torn.arrived(2, std::span(stripe.bytes[2]).first(layout.shard_bytes - 1));
  torn.ended(2);
  EXPECT_EQ(torn.fault(2), ShardFault::kShort);
  EXPECT_EQ(torn.layers_ready(), 0U);
  const base::Status refused = torn.assemble_all(out, coder());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kUnavailable);
}

/// Two engines computed the block with other last bits, and each wrote some of the shards.
TEST(StripeTest, ShardsOfTwoWritingsAreNeverMixed) {
  const StripeLayout layout = layout_of({400, 400});
  const auto first = random_block(800, 7);
  auto second = first;
  second[700] ^= std::byte{1};
  Stripe one(layout, first), two(layout, second);
  StripeReader reader(layout, kKey);
  give(reader, one, 0b0000'0111'1111);
  give(reader, two, 0b1111'1000'0000);
  EXPECT_EQ(reader.layers_ready(), 0U);
  StripeReader ten(layout, kKey);
  give(ten, one, 0b0011'1111'1111);
  give(ten, two, 0b1100'0000'0000);
  std::vector<std::byte> out(800);
  ASSERT_TRUE(ten.assemble_all(out, coder()));
  EXPECT_EQ(out, first);
  EXPECT_EQ(ten.to_rewrite(), 0b1100'0000'0000);
}

TEST(StripeTest, RefusesLayoutsThatCannotBe) {
  model::KvLayout kv;
  EXPECT_FALSE(StripeLayout::make(kv));
  kv.block_bytes = base::Bytes{100};
  kv.layer_bytes = {base::Bytes{60}, base::Bytes{60}};
  EXPECT_FALSE(StripeLayout::make(kv));
  kv.layer_bytes.assign(256, base::Bytes{1});
  kv.block_bytes = base::Bytes{1'000};
  EXPECT_FALSE(StripeLayout::make(kv));
}

}  // namespace
}  // namespace trimtab::kv_code
