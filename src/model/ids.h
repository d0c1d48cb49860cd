#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "base/strong.h"
#include "base/units.h"

namespace trimtab::model {

using RequestId = base::Id<struct RequestTag, std::uint64_t>;
using EngineId = base::Id<struct EngineTag>;    // a DP group: one prefill engine or one decode group
using MachineId = base::Id<struct MachineTag>;  // a vision machine
using TierId = base::Id<struct TierTag>;        // 0 is the shortest tier
using ExpertId = base::Id<struct ExpertTag>;

enum class Role : std::uint8_t { kPrefill, kDecode, kVision };

/// One GPU (here: one process) of a DP group. Ordered by engine, then rank, which is also the order that
/// breaks ties.
struct RankId {
  EngineId engine;
  std::uint32_t rank = 0;

  constexpr auto operator<=>(const RankId&) const = default;
  template <class A>
  void visit(A& a) {
    a(engine, rank);
  }
};

/// One encoder (one GPU) of a vision machine.
struct EncoderId {
  MachineId machine;
  std::uint32_t encoder = 0;

  constexpr auto operator<=>(const EncoderId&) const = default;
  template <class A>
  void visit(A& a) {
    a(machine, encoder);
  }
};

/// Tokens in one KV block, before compression (system facts, section 10).
inline constexpr std::int64_t kBlockTokens = 128;

/// The key of one full KV block: 128 bits of the cryptographic chain that `kv::KeyChain` computes. Also used
/// for image content.
struct BlockKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  constexpr auto operator<=>(const BlockKey&) const = default;
  template <class A>
  void visit(A& a) {
    a(high, low);
  }
};

/// 32 lowercase hexadecimal digits.
std::string to_string(BlockKey key);
std::string to_string(RankId rank);

}  // namespace trimtab::model

template <>
struct std::hash<trimtab::model::BlockKey> {
  std::size_t operator()(const trimtab::model::BlockKey& key) const noexcept {
    return key.low ^ (key.high * 0x9e3779b97f4a7c15ULL);
  }
};
template <>
struct std::hash<trimtab::model::RankId> {
  std::size_t operator()(const trimtab::model::RankId& id) const noexcept {
    return (static_cast<std::size_t>(id.engine.value) << 32 | id.rank) * 0x9e3779b97f4a7c15ULL;
  }
};
