#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "kv/window_ring.h"
#include "model/ids.h"

namespace trimtab::kv {

using model::BlockKey;

/// Which window state a snapshot is. The key of the block that ends at `position` names every token before
/// it, the model, the tokenizer, the adapter and the tenant; the layout says what the bytes mean. Two states
/// that differ in any of these have different names, so none is ever used for another.
struct SnapshotName {
  BlockKey prefix;
  std::int64_t position = 0;  // tokens; a multiple of 128
  BlockKey layout;

  constexpr auto operator<=>(const SnapshotName&) const = default;
  template <class A>
  void visit(A& a) {
    a(prefix, position, layout);
  }
};

/// The name of the state after the first `blocks` blocks, at least one, of a prompt with these keys.
SnapshotName snapshot_name(std::span<const BlockKey> keys, std::int64_t blocks, BlockKey layout);

/// `element` says what a row is, e.g. "mxfp8 512+16". The ring's length is no part: snapshots are in order of
/// position, so engines with rings of other lengths may share them.
BlockKey layout_key(const RingShape& shape, std::string_view element);

/// XXH3-64 of the content, seeded with the name: content that lies under another name does not match.
std::uint64_t snapshot_checksum(const SnapshotName& name, std::span<const std::byte> content);

/// "<prefix>@<position>", for messages.
std::string to_string(const SnapshotName& name);

}  // namespace trimtab::kv

template <>
struct std::hash<trimtab::kv::SnapshotName> {
  std::size_t operator()(const trimtab::kv::SnapshotName& name) const noexcept {
    return trimtab::base::mix(trimtab::base::mix(name.prefix.low, static_cast<std::uint64_t>(name.position)),
                              name.layout.low);
  }
};
