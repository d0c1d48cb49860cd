#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trimtab::kv_code {

inline constexpr std::uint32_t kData = 10, kParity = 2, kShards = kData + kParity;

/// Which shards, bit by bit.
using ShardSet = std::uint16_t;
inline constexpr ShardSet kAllShards = (1U << kShards) - 1;
constexpr bool has(ShardSet set, std::uint32_t shard) { return (set >> shard & 1U) != 0; }

/// Reed-Solomon over GF(2^8), polynomial 0x11d: shard 10 is the sum of the ten data shards, shard 11 the sum
/// of 2^i x shard i. Any ten of the twelve give back the other two. (The code of RAID-6; ISA-L's
/// gf_gen_rs_matrix.)
class Coder {
 public:
  /// kFast: by bit matrices where the processor has them (combine.h), otherwise kTables, which is ISA-L.
  /// kPortable is plain tables, for other machines and to check the others by.
  enum class Form : std::uint8_t { kFast, kTables, kPortable };
  explicit Coder(Form form = Form::kFast);

  using Sources = std::array<const std::byte*, kData>;
  /// parity[0], parity[1]: `bytes` each.
  void encode(const Sources& data, std::array<std::byte*, kParity> parity, std::size_t bytes) const;

  /// Computes the `wanted` shards from ten of the `present` ones, `bytes` of each. `shards[i]` points to
  /// shard i: read when present, written when wanted. At least ten must be present, and none both.
  void recover(const std::array<std::byte*, kShards>& shards, ShardSet present, ShardSet wanted,
               std::size_t bytes) const;

 private:
  /// For a set of one or two lost shards: how each is made of the first ten others. All 78 are made at
  /// start: inverting costs more than decoding a small stripe.
  struct Pattern {
    std::array<std::uint8_t, kData> sources{};
    std::array<std::array<std::uint8_t, kData>, kParity> factors{};  // of each lost shard, in order
    std::vector<std::uint8_t> tables;                                // ISA-L's, row after row
  };
  void make_pattern(ShardSet lost);

  Form form_;
  bool by_matrix_;
  std::array<std::array<std::uint8_t, kData>, kParity> encode_factors_{};
  std::vector<std::uint8_t> encode_tables_;
  std::vector<Pattern> patterns_;
  std::vector<std::uint8_t> index_;  // of the pattern, by set
};

/// The process's own, of the fast form.
const Coder& coder();

}  // namespace trimtab::kv_code
