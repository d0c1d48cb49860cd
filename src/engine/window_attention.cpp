#include "engine/window_attention.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace trimtab::engine {

namespace {

constexpr auto kBlock = static_cast<std::int64_t>(kAttentionBlock);

}  // namespace

WindowAttention::WindowAttention(const LlamaShape& shape, const Kernels& kernels, KvFormat format)
    : shape_(shape), ring_(shape.ring(format)), kernels_(kernels), format_(format) {
  if (ring_.layers == 0) return;
  const std::size_t floats = 2 * kHeadElements * kAttentionBlock;
  std::fill_n(tile_.ensure(floats), floats, 0.0F);
}

std::byte* WindowAttention::row(std::int64_t position) const {
  return const_cast<std::byte*>(line_.data()) + (position - line_begin_) * ring_.row_bytes;
}

void WindowAttention::run(const SequenceWindow& window, const Rows& rows) {
  TRIMTAB_CHECK(static_cast<std::int64_t>(window.ring.size()) == kv::ring_bytes(ring_).value,
                "a state slot of another shape");
  TRIMTAB_CHECK(window.from % kBlock == 0 && window.from <= rows.position, "a window begins at a block");
  take_ring(window, rows);
  store(rows);
  for (std::size_t head = 0; head < shape_.kv_heads; ++head) attend_head(window, rows, head);
  copy_snapshots(window, rows);
  put_ring(window, rows);
}

void WindowAttention::take_ring(const SequenceWindow& window, const Rows& rows) {
  line_begin_ = std::max(window.from, rows.position - ring_.window_tokens);
  line_end_ = rows.position + static_cast<std::int64_t>(rows.count);
  line_.resize(static_cast<std::size_t>((line_end_ - line_begin_) * ring_.row_bytes));
  const std::byte* ring =
      window.ring.data() + static_cast<std::int64_t>(rows.place) * ring_.ring_slots * ring_.row_bytes;
  for (std::int64_t p = line_begin_; p < rows.position; ++p)
    std::memcpy(row(p), ring + p % ring_.ring_slots * ring_.row_bytes,
                static_cast<std::size_t>(ring_.row_bytes));
}

void WindowAttention::store(const Rows& rows) {
  const std::size_t half = kHeadElements * element_bytes(format_);
  for (std::size_t i = 0; i < rows.count; ++i) {
    std::byte* to = row(rows.position + static_cast<std::int64_t>(i));
    for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
      const float* key = rows.key + i * shape_.kv_width() + h * kHeadElements;
      const float* value = rows.value + i * shape_.kv_width() + h * kHeadElements;
      for (const float* from : {key, value}) {
        if (format_ == KvFormat::kF32) {
          std::memcpy(to, from, half);
        } else {
          kernels_.to_half(from, reinterpret_cast<std::uint16_t*>(to), kHeadElements);
        }
        to += half;
      }
    }
  }
}

void WindowAttention::attend_head(const SequenceWindow& window, const Rows& rows, std::size_t head) {
  const std::size_t group = shape_.heads / shape_.kv_heads;
  constexpr float kScale = 0.125F;  // 1 / sqrt(64), a power of two: exact
  float* to = queries_.ensure(rows.count * group * kHeadElements);
  for (std::size_t i = 0; i < rows.count; ++i) {
    const float* from = rows.query + i * shape_.query_width() + head * group * kHeadElements;
    for (std::size_t e = 0; e < group * kHeadElements; ++e) *to++ = from[e] * kScale;
  }
  states_.resize(rows.count * group);
  visible_.resize(states_.size());
  for (AttentionState& state : states_) state.empty = true;

  const auto oldest = [&](std::int64_t p) { return std::max(window.from, p - ring_.window_tokens + 1); };
  const std::int64_t first = rows.position, end = line_end_;
  for (std::int64_t block = oldest(first) / kBlock * kBlock; block < end; block += kBlock) {
    // Queries that see the block from its first token on: those in it and after it, until the window's
    // beginning has moved into the block; from then on they see its end only, and at last nothing of it.
    std::int64_t whole = std::max(first, block), part = whole;
    while (part < end && oldest(part) <= block) ++part;
    std::int64_t none = part;
    while (none < end && oldest(none) < block + kBlock) ++none;
    const auto seen = [&](std::int64_t p, std::int64_t tokens) {
      const std::size_t i = static_cast<std::size_t>(p - first) * group;
      std::fill_n(visible_.begin() + static_cast<std::ptrdiff_t>(i), group,
                  static_cast<std::uint8_t>(tokens));
    };
    for (std::int64_t p = whole; p < part; ++p) seen(p, std::min(kBlock, p + 1 - block));
    for (std::int64_t p = part; p < none; ++p) seen(p, block + kBlock - oldest(p));
    const std::int64_t last = std::min(end, block + kBlock);
    attend_tile(block, last, head, false, static_cast<std::size_t>(whole - first),
                static_cast<std::size_t>(std::max<std::int64_t>(0, part - whole)));
    attend_tile(block, last, head, true, static_cast<std::size_t>(part - first),
                static_cast<std::size_t>(none - part));
  }
  for (std::size_t i = 0; i < rows.count; ++i) {
    float* out = rows.context + i * shape_.query_width() + head * group * kHeadElements;
    for (std::size_t g = 0; g < group; ++g)
      kernels_.attention_result(states_[i * group + g], out + g * kHeadElements);
  }
}

void WindowAttention::attend_tile(std::int64_t first, std::int64_t last, std::size_t head, bool newest_first,
                                  std::size_t query, std::size_t queries) {
  if (queries == 0) return;
  if (format_ == KvFormat::kF16) {
    fill_tile<std::uint16_t>(first, last, head, newest_first);
  } else {
    fill_tile<float>(first, last, head, newest_first);
  }
  const std::size_t group = shape_.heads / shape_.kv_heads;
  AttendBlock work;
  work.format = format_;
  work.keys = reinterpret_cast<const std::byte*>(tile_.data());
  work.values = work.keys + kHeadElements * kAttentionBlock * element_bytes(format_);
  work.queries = queries_.data() + query * group * kHeadElements;
  work.visible = visible_.data() + query * group;
  work.states = states_.data() + query * group;
  work.count = queries * group;
  kernels_.attend(work);
}

/// Tokens that the line does not have stay what they were: no query sees them.
template <class Element>
void WindowAttention::fill_tile(std::int64_t first, std::int64_t last, std::size_t head, bool newest_first) {
  auto* keys = reinterpret_cast<Element*>(tile_.data());
  Element* values = keys + kHeadElements * kAttentionBlock;
  for (std::int64_t p = std::max(first, line_begin_); p < last; ++p) {
    const auto t = static_cast<std::size_t>(newest_first ? first + kBlock - 1 - p : p - first);
    const auto* from = reinterpret_cast<const Element*>(row(p)) + head * 2 * kHeadElements;
    for (std::size_t d = 0; d < kHeadElements; ++d) keys[d * kAttentionBlock + t] = from[d];
    std::memcpy(values + t * kHeadElements, from + kHeadElements, kHeadElements * sizeof(Element));
  }
}

void WindowAttention::copy_snapshots(const SequenceWindow& window, const Rows& rows) {
  for (const SnapshotCopy& copy : window.snapshots) {
    if (copy.position <= rows.position || copy.position > line_end_) continue;
    const std::int64_t tokens = kv::snapshot_tokens(ring_, copy.position);
    TRIMTAB_CHECK(copy.position - tokens >= line_begin_, "a snapshot of rows that are not there");
    TRIMTAB_CHECK(
        static_cast<std::int64_t>(copy.bytes.size()) == kv::snapshot_bytes(ring_, copy.position).value,
        "room for a snapshot of another shape");
    const auto bytes = static_cast<std::size_t>(tokens * ring_.row_bytes);
    std::memcpy(copy.bytes.data() + rows.place * bytes, row(copy.position - tokens), bytes);
  }
}

void WindowAttention::put_ring(const SequenceWindow& window, const Rows& rows) {
  std::byte* ring =
      window.ring.data() + static_cast<std::int64_t>(rows.place) * ring_.ring_slots * ring_.row_bytes;
  for (std::int64_t p = std::max(rows.position, line_end_ - ring_.ring_slots); p < line_end_; ++p)
    std::memcpy(ring + p % ring_.ring_slots * ring_.row_bytes, row(p),
                static_cast<std::size_t>(ring_.row_bytes));
}

}  // namespace trimtab::engine
