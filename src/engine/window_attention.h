#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels.h"
#include "engine/llama_weights.h"

namespace trimtab::engine {

/// A copy of the window before `position` (a multiple of 128 inside the step's tokens) that a step makes on
/// its way: bytes as kv::copy_window_out gives them, of kv::snapshot_bytes(ring, position) bytes.
struct SnapshotCopy {
  std::int64_t position = 0;
  std::span<std::byte> bytes;
};

/// What a segment has besides its blocks, in models with sliding-window layers.
struct SequenceWindow {
  std::span<std::byte> ring;  // the sequence's state slot: kv::ring_bytes(shape.ring())
  /// Rows before this position are not there and count as out of sight: 0, or where a computation without the
  /// window's state began. A multiple of 128.
  std::int64_t from = 0;
  std::span<const SnapshotCopy> snapshots;
};

/// Attention of the layers with a sliding window. Their rows lie in the sequence's ring and nowhere else.
///
/// Bits: a query at p sees [max(from, p - window + 1), p], cut at multiples of 128. The oldest piece, when it
/// begins inside a block, is visited from its newest token to its oldest, all others from the oldest on: so
/// each is a leading part of a tile, which is what Kernels::attend sees. The order depends on p and on
/// nothing else; a computation that keeps all rows and masks has the same bits (window_attention_test.cpp).
///
/// A step may be longer than the ring: its own rows are attended to where it made them, and only the last
/// ones go into the ring. One object per Forward, one thread.
class WindowAttention {
 public:
  WindowAttention(const LlamaShape& shape, const Kernels& kernels, KvFormat format);

  /// `count` consecutive tokens from `position` on, of one sequence, in the layer that is number `place`
  /// among those with a window. Queries, keys and values are rotated: rows of query_width and kv_width;
  /// `context` gets rows of query_width.
  struct Rows {
    std::size_t place = 0;
    std::int64_t position = 0;
    std::size_t count = 0;
    const float *query = nullptr, *key = nullptr, *value = nullptr;
    float* context = nullptr;
  };
  void run(const SequenceWindow& window, const Rows& rows);

 private:
  std::byte* row(std::int64_t position) const;  // of `line_`
  void take_ring(const SequenceWindow& window, const Rows& rows);
  void store(const Rows& rows);
  void copy_snapshots(const SequenceWindow& window, const Rows& rows);
  void put_ring(const SequenceWindow& window, const Rows& rows);
  void attend_head(const SequenceWindow& window, const Rows& rows, std::size_t head);
  template <class Element>
  void fill_tile(std::int64_t first, std::int64_t last, std::size_t head, bool newest_first);
  void attend_tile(std::int64_t first, std::int64_t last, std::size_t head, bool newest_first,
                   std::size_t query, std::size_t queries);

  LlamaShape shape_;
  kv::RingShape ring_;
  const Kernels& kernels_;
  KvFormat format_;
  std::vector<std::byte> line_;  // rows of [line_begin_, line_end_), in order of position
  std::int64_t line_begin_ = 0, line_end_ = 0;
  AlignedFloats queries_;  // [count][heads of the group][64]
  AlignedFloats tile_;     // keys [64][128], then values [128][64], in the stored format
  std::vector<std::uint8_t> visible_;
  std::vector<AttentionState> states_;
};

}  // namespace trimtab::engine
