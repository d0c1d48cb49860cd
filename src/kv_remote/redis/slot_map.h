#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trimtab::kv_remote {

inline constexpr std::uint32_t kRedisSlots = 16'384;

/// CRC16 (XMODEM: polynomial 0x1021, from 0) of the key, or of what stands between its first `{` and the next
/// `}` when that is not empty, modulo 16,384: the Redis Cluster specification's "HASH_SLOT".
std::uint32_t redis_slot(std::string_view key);

/// Which node serves which slot, as far as is known. Nodes are named "host:port".
class SlotMap {
 public:
  SlotMap() : nodes_(kRedisSlots) {}

  /// Empty when not known.
  const std::string& node_of(std::uint32_t slot) const { return nodes_[slot]; }
  void assign(std::uint32_t first, std::uint32_t last, const std::string& node);
  void clear() { nodes_.assign(kRedisSlots, {}); }
  /// All nodes that serve something, in the order of their names.
  std::vector<std::string> nodes() const;
  std::uint32_t slots_known() const;

 private:
  std::vector<std::string> nodes_;
};

/// What a node says instead of doing what it was asked.
struct Redirection {
  enum class Kind : std::uint8_t {
    kNone,   // an error of another kind
    kMoved,  // the slot is that node's now
    kAsk,    // this one key is asked for there, once, after ASKING
    kWait,   // the cluster is busy with the slot, or electing: try again in a while
  };
  Kind kind = Kind::kNone;
  std::uint32_t slot = 0;
  std::string node;  // "host:port"; an empty host (the node does not know its own name) is the asked node's
};
/// Of an error reply's text: "MOVED 3999 10.0.0.1:6381", "ASK ...", "TRYAGAIN ...", "CLUSTERDOWN ...",
/// "LOADING ...", "MASTERDOWN ...". `asked`: the node that said it.
Redirection parse_redirection(std::string_view error, const std::string& asked);

}  // namespace trimtab::kv_remote
