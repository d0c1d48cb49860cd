#include "kv/snapshot_name.h"

#include <fmt/format.h>

#include "base/check.h"
#include "kv/key_chain.h"

namespace trimtab::kv {

SnapshotName snapshot_name(std::span<const BlockKey> keys, std::int64_t blocks, BlockKey layout) {
  TRIMTAB_CHECK(blocks > 0 && blocks <= static_cast<std::int64_t>(keys.size()), "no key for that state");
  return {keys[static_cast<std::size_t>(blocks - 1)], blocks * model::kBlockTokens, layout};
}

BlockKey layout_key(const RingShape& shape, std::string_view element) {
  // Numbers first and the free text last, so that no text can pass for another shape.
  const std::string text = fmt::format("trimtab window state 1; {} layers x {} tokens x {} bytes; {}",
                                       shape.layers, shape.window_tokens, shape.row_bytes, element);
  return content_key(std::as_bytes(std::span{text}));
}

std::uint64_t snapshot_checksum(const SnapshotName& name, std::span<const std::byte> content) {
  std::uint64_t seed = base::mix(name.prefix.high, name.prefix.low);
  seed = base::mix(seed, static_cast<std::uint64_t>(name.position));
  seed = base::mix(base::mix(seed, name.layout.high), name.layout.low);
  return base::checksum(content, seed);
}

std::string to_string(const SnapshotName& name) {
  return fmt::format("{}@{}", model::to_string(name.prefix), name.position);
}

}  // namespace trimtab::kv
