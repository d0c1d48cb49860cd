#include "kv_code/stripe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/running_checksum.h"
#include "kv_code/copy_past.h"

namespace trimtab::kv_code {
namespace {

constexpr std::uint32_t kMagic = 0x53564b54;  // "TKVS"
constexpr std::uint16_t kFormat = 1;
constexpr std::size_t kSliceAlign = 16;

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t format = kFormat;
  std::uint8_t shard = 0, layers = 0;
  std::uint64_t key_low = 0, key_high = 0;
  std::uint64_t block_bytes = 0, block_checksum = 0;
};
static_assert(sizeof(Header) == 40);

std::uint64_t load(std::span<const std::byte> from, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, from.data() + offset, sizeof(value));
  return value;
}

void store(std::span<std::byte> to, std::size_t offset, std::uint64_t value) {
  std::memcpy(to.data() + offset, &value, sizeof(value));
}

/// Where the checksum of slice `layer` stands in a shard; the header's own follows the last.
std::size_t checksum_offset(std::size_t layer) { return sizeof(Header) + layer * sizeof(std::uint64_t); }

template <class Byte>
std::span<Byte> slice(const StripeLayout::Layer& layer, std::span<Byte> shard) {
  return shard.subspan(layer.slice_offset, layer.slice_bytes);
}

/// As the coder takes them, which only reads those that are present.
std::byte* source(const StripeLayout::Layer& layer, std::span<const std::byte> shard) {
  return const_cast<std::byte*>(slice(layer, shard).data());
}

/// Bytes of the layer that data shard `i` carries; fewer than a slice at the end.
template <class Byte>
std::span<Byte> part(const StripeLayout::Layer& layer, std::span<Byte> bytes, std::uint32_t i) {
  const std::size_t begin = std::min(bytes.size(), i * layer.slice_bytes);
  return bytes.subspan(begin, std::min(layer.slice_bytes, bytes.size() - begin));
}

}  // namespace

base::Result<StripeLayout> StripeLayout::make(const model::KvLayout& kv) {
  const auto refuse = [](std::string message) {
    return base::fail(base::Code::kInvalidArgument, std::move(message), "kv_code");
  };
  if (kv.block_bytes.value <= 0) return refuse(fmt::format("a block of {} bytes", kv.block_bytes.value));
  if (kv.layer_bytes.size() > 255)
    return refuse(fmt::format("{} layers own KV; a shard's header holds 255", kv.layer_bytes.size()));
  StripeLayout layout;
  layout.block_bytes = static_cast<std::size_t>(kv.block_bytes.value);
  std::size_t at = 0;
  for (const base::Bytes bytes : kv.layer_bytes) {
    if (bytes.value <= 0) return refuse(fmt::format("a layer of {} bytes", bytes.value));
    layout.layers.push_back({at, static_cast<std::size_t>(bytes.value), 0, 0});
    at += layout.layers.back().bytes;
  }
  if (at > layout.block_bytes)
    return refuse(fmt::format("layers of {} bytes in a block of {}", at, layout.block_bytes));
  if (layout.layers.empty()) layout.layers.push_back({0, 0, 0, 0});
  layout.layers.back().bytes = layout.block_bytes - layout.layers.back().offset;
  layout.header_bytes = checksum_offset(layout.layers.size() + 1);
  layout.header_bytes = (layout.header_bytes + kSliceAlign - 1) / kSliceAlign * kSliceAlign;
  layout.shard_bytes = layout.header_bytes;
  for (Layer& layer : layout.layers) {
    layer.slice_bytes = (layer.bytes + kData * kSliceAlign - 1) / (kData * kSliceAlign) * kSliceAlign;
    layer.slice_offset = layout.shard_bytes;
    layout.shard_bytes += layer.slice_bytes;
  }
  return layout;
}

void write_shards(const StripeLayout& layout, BlockKey key, std::span<const std::byte> block,
                  const Shards& shards) {
  TRIMTAB_CHECK(block.size() == layout.block_bytes);
  const std::uint64_t whole = base::checksum(block);
  for (std::uint32_t s = 0; s < kShards; ++s) {
    TRIMTAB_CHECK(shards[s].size() == layout.shard_bytes);
    const Header header{
        kMagic,  kFormat,  static_cast<std::uint8_t>(s), static_cast<std::uint8_t>(layout.layers.size()),
        key.low, key.high, layout.block_bytes,           whole};
    std::fill_n(shards[s].begin(), layout.header_bytes, std::byte{0});
    std::memcpy(shards[s].data(), &header, sizeof(header));
  }
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const StripeLayout::Layer& layer = layout.layers[l];
    const auto bytes = block.subspan(layer.offset, layer.bytes);
    Coder::Sources sources{};
    for (std::uint32_t i = 0; i < kData; ++i) {
      const auto from = part(layer, bytes, i);
      const auto to = slice(layer, shards[i]);
      std::ranges::copy(from, to.begin());
      std::fill(to.begin() + static_cast<std::ptrdiff_t>(from.size()), to.end(), std::byte{0});
      sources[i] = to.data();
    }
    coder().encode(sources, {slice(layer, shards[kData]).data(), slice(layer, shards[kData + 1]).data()},
                   layer.slice_bytes);
    for (const auto& shard : shards) {
      store(shard, checksum_offset(l), base::checksum(slice(layer, shard)));
    }
  }
  const std::size_t end = checksum_offset(layout.layers.size());
  for (const auto& shard : shards) store(shard, end, base::checksum(shard.first(end)));
}

std::string_view name(ShardFault fault) {
  switch (fault) {
    case ShardFault::kShort:
      return "short";
    case ShardFault::kForeign:
      return "foreign";
    case ShardFault::kCorrupt:
      return "corrupt";
  }
  return "?";
}

StripeReader::StripeReader(const StripeLayout& layout, BlockKey key) : layout_(&layout), key_(key) {}

void StripeReader::read_header(std::uint32_t shard) {
  State& state = states_[shard];
  Header header;
  std::memcpy(&header, state.bytes.data(), sizeof(header));
  const std::size_t end = checksum_offset(layout_->layers.size());
  if (header.magic != kMagic || header.format != kFormat) {
    state.fault = ShardFault::kForeign;
  } else if (load(state.bytes, end) != base::checksum(state.bytes.first(end))) {
    state.fault = ShardFault::kCorrupt;
  } else if (header.key_low != key_.low || header.key_high != key_.high || header.shard != shard ||
             header.layers != layout_->layers.size() || header.block_bytes != layout_->block_bytes) {
    state.fault = ShardFault::kForeign;
  }
  state.header = true;
  state.writing = header.block_checksum;
}

void StripeReader::arrived(std::uint32_t shard, std::span<const std::byte> bytes) {
  State& state = states_[shard];
  if (state.fault) return;
  state.bytes = bytes;
  if (!state.header && bytes.size() >= layout_->header_bytes) read_header(shard);
  while (!state.fault && state.header && state.layers < layout_->layers.size()) {
    const StripeLayout::Layer& layer = layout_->layers[state.layers];
    if (layer.slice_offset + layer.slice_bytes > bytes.size()) break;
    const std::uint64_t wanted = load(bytes, checksum_offset(state.layers));
    if (base::checksum(slice(layer, bytes)) != wanted) {
      state.fault = ShardFault::kCorrupt;
    } else {
      place(shard, state.layers++);
    }
  }
  settle_writing();
}

void StripeReader::settle_writing() {
  if (into_.empty() || settled_) return;
  if (const Choice choice = choose(); choice.layers > 0) settled_ = choice.writing;
}

void StripeReader::place_into(std::span<std::byte> block, std::uint32_t from_layer) {
  TRIMTAB_CHECK(block.size() == layout_->block_bytes);
  into_ = block;
  place_from_ = from_layer;
}

void StripeReader::place(std::uint32_t shard, std::uint32_t l) {
  if (into_.empty() || shard >= kData || l < place_from_) return;
  // What was computed in its place is the block's, and may have been handed out.
  if (settled_ && states_[shard].writing != *settled_) return;
  const StripeLayout::Layer& layer = layout_->layers[l];
  const std::span<std::byte> to = part(layer, into_.subspan(layer.offset, layer.bytes), shard);
  copy_past(to.data(), slice(layer, states_[shard].bytes).data(), to.size());
}

bool StripeReader::placed(std::uint32_t shard, std::uint32_t l, const std::byte* layer) const {
  return !into_.empty() && shard < kData && l >= place_from_ &&
         layer == into_.data() + layout_->layers[l].offset;
}

void StripeReader::ended(std::uint32_t shard) {
  State& state = states_[shard];
  if (!state.fault && state.layers < layout_->layers.size()) state.fault = ShardFault::kShort;
}

StripeReader::Choice StripeReader::choose() const {
  Choice best;
  const auto begun = std::ranges::count_if(states_, [](const State& state) { return state.layers > 0; });
  if (begun < kData) return best;
  ShardSet seen = 0;
  for (std::uint32_t first = 0; first < kShards; ++first) {
    if (has(seen, first) || states_[first].layers == 0) continue;
    // A shard whose later slice is bad still gives the earlier ones. The tenth best of twelve is the third
    // from below.
    const std::uint64_t writing = states_[first].writing;
    std::uint32_t least = UINT32_MAX, second = UINT32_MAX, third = UINT32_MAX;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      const bool same = states_[s].layers > 0 && states_[s].writing == writing;
      if (same) seen |= static_cast<ShardSet>(1U << s);
      const std::uint32_t layers = same ? states_[s].layers : 0;
      if (layers < least) {
        third = second, second = least, least = layers;
      } else if (layers < second) {
        third = second, second = layers;
      } else if (layers < third) {
        third = layers;
      }
    }
    if (third > best.layers) best = {writing, third};
  }
  return best;
}

std::uint64_t StripeReader::most_whole() const {
  std::uint64_t writing = 0;
  std::uint32_t most = 0;
  const auto whole = [&](const State& state) { return state.layers == layout_->layers.size(); };
  for (const State& state : states_) {
    if (!whole(state) || (most > 0 && state.writing == writing)) continue;
    const auto count = static_cast<std::uint32_t>(std::ranges::count_if(
        states_, [&](const State& other) { return whole(other) && other.writing == state.writing; }));
    if (count > most) most = count, writing = state.writing;
  }
  return writing;
}

ShardSet StripeReader::good() const {
  const std::uint64_t writing = most_whole();
  ShardSet out = 0;
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (states_[s].layers == layout_->layers.size() && states_[s].writing == writing)
      out |= static_cast<ShardSet>(1U << s);
  return out;
}

std::uint32_t StripeReader::agreeing() const { return static_cast<std::uint32_t>(std::popcount(good())); }

void StripeReader::rebuild(ShardSet wanted, const Shards& out, const Coder& with) const {
  const ShardSet from = good();
  TRIMTAB_CHECK(std::popcount(from) >= static_cast<int>(kData) && (from & wanted) == 0);
  const std::size_t end = checksum_offset(layout_->layers.size());
  const auto& model = states_[static_cast<std::size_t>(std::countr_zero(from))].bytes;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (!has(wanted, s)) continue;
    TRIMTAB_CHECK(out[s].size() == layout_->shard_bytes);
    std::fill_n(out[s].begin(), layout_->header_bytes, std::byte{0});
    std::memcpy(out[s].data(), model.data(), sizeof(Header));
    out[s][offsetof(Header, shard)] = static_cast<std::byte>(s);
  }
  for (std::size_t l = 0; l < layout_->layers.size(); ++l) {
    const StripeLayout::Layer& layer = layout_->layers[l];
    std::array<std::byte*, kShards> slices{};
    for (std::uint32_t s = 0; s < kShards; ++s) {
      if (has(from, s)) slices[s] = source(layer, states_[s].bytes);
      if (has(wanted, s)) slices[s] = slice(layer, out[s]).data();
    }
    with.recover(slices, from, wanted, layer.slice_bytes);
    for (std::uint32_t s = 0; s < kShards; ++s)
      if (has(wanted, s)) store(out[s], checksum_offset(l), base::checksum(slice(layer, out[s])));
  }
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (has(wanted, s)) store(out[s], end, base::checksum(out[s].first(end)));
}

std::uint32_t StripeReader::layers_ready() const { return choose().layers; }

void StripeReader::assemble(std::uint32_t l, std::span<std::byte> out, const Coder& with) const {
  const Choice choice = choose();
  const StripeLayout::Layer& layer = layout_->layers[l];
  TRIMTAB_CHECK(l < choice.layers && out.size() == layer.bytes);
  std::array<std::byte*, kShards> slices{};
  ShardSet present = 0, wanted = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (states_[s].writing != choice.writing || states_[s].layers <= l) continue;
    present |= static_cast<ShardSet>(1U << s);
    slices[s] = source(layer, states_[s].bytes);
  }
  // A missing slice is computed where it belongs; the last one may be longer than what is left of the layer.
  std::vector<std::byte> tail;
  for (std::uint32_t i = 0; i < kData; ++i) {
    const std::size_t begin = std::min(out.size(), i * layer.slice_bytes);
    const std::size_t bytes = std::min(layer.slice_bytes, out.size() - begin);
    if (has(present, i)) {
      if (!placed(i, l, out.data())) copy_past(out.data() + begin, slices[i], bytes);
    } else if (bytes == layer.slice_bytes) {
      wanted |= static_cast<ShardSet>(1U << i);
      slices[i] = out.data() + begin;
    } else if (bytes > 0) {
      tail.resize(layer.slice_bytes);
      wanted |= static_cast<ShardSet>(1U << i);
      slices[i] = tail.data();
    }
  }
  copied_past();
  with.recover(slices, present, wanted, layer.slice_bytes);
  if (tail.empty()) return;
  const std::size_t begin = out.size() / layer.slice_bytes * layer.slice_bytes;
  std::memcpy(out.data() + begin, tail.data(), out.size() - begin);
}

base::Status StripeReader::assemble_all(std::span<std::byte> out, const Coder& with) const {
  TRIMTAB_CHECK(out.size() == layout_->block_bytes);
  const Choice choice = choose();
  if (choice.layers < layout_->layers.size()) {
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("{} of {} layers have ten good slices", choice.layers, layout_->layers.size()),
        "kv_code");
  }
  for (std::uint32_t l = 0; l < choice.layers; ++l)
    assemble(l, out.subspan(layout_->layers[l].offset, layout_->layers[l].bytes), with);
  if (base::checksum(std::span<const std::byte>(out)) != choice.writing)
    return base::fail(base::Code::kDataLoss, "the block's checksum does not match its slices'", "kv_code");
  return {};
}

bool StripeReader::matches(std::span<const std::byte> block) const {
  return base::checksum(block) == choose().writing;
}

bool StripeReader::slices_match(std::span<const std::byte> block) const {
  const std::uint64_t writing = choose().writing;
  base::RunningChecksum whole;
  for (std::uint32_t l = 0; l < layout_->layers.size(); ++l) {
    const StripeLayout::Layer& layer = layout_->layers[l];
    for (std::uint32_t i = 0; i < kData; ++i) {
      const auto bytes = part(layer, block.subspan(layer.offset, layer.bytes), i);
      const bool here = states_[i].writing == writing && states_[i].layers > l;
      whole.add(here ? slice(layer, states_[i].bytes).first(bytes.size()) : bytes);
    }
  }
  return whole.value() == writing;
}

ShardSet StripeReader::to_rewrite() const {
  const std::uint64_t writing = choose().writing;
  ShardSet out = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    const bool other = states_[s].header && !states_[s].fault && states_[s].writing != writing;
    if (states_[s].fault || other) out |= static_cast<ShardSet>(1U << s);
  }
  return out;
}

}  // namespace trimtab::kv_code
