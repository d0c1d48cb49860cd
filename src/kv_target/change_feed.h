#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "kv_target/target.h"

namespace trimtab::kv_target {

struct ShardHash {
  std::size_t operator()(const ShardName& name) const {
    return name.key.low ^ (name.key.high * 31) ^ (std::uint64_t{name.shard} * 0x9e3779b97f4a7c15ULL);
  }
};

/// The order in which a target's holdings changed, for `Target::changes`: each shard it holds has the
/// sequence of its last write; erases are remembered for the last `erases_kept` of them, after which somebody
/// who asks from before them is told everything anew. Logarithmic in the shards; about 150 bytes for each.
class ChangeFeed {
 public:
  explicit ChangeFeed(std::uint64_t epoch, std::size_t erases_kept = 65'536)
      : epoch_(epoch), erases_kept_(erases_kept) {}

  void put(const ShardName& name, std::uint32_t bytes);
  void erased(const ShardName& name);
  Changes since(const Cursor& cursor, std::uint32_t limit) const;

 private:
  struct Entry {
    ShardName name;
    std::uint32_t bytes = 0;
  };
  void forget(const ShardName& name);

  std::uint64_t epoch_ = 0, last_ = 0;
  std::size_t erases_kept_ = 0, erases_ = 0;
  std::uint64_t forgotten_ = 0;   // erases up to this sequence may be forgotten
  std::uint64_t generation_ = 1;  // grows when they are
  std::map<std::uint64_t, Entry> by_sequence_;
  std::unordered_map<ShardName, std::uint64_t, ShardHash> sequence_of_;
};

}  // namespace trimtab::kv_target
