#pragma once

#include <cstdint>

namespace trimtab::experts {

/// Multiplier of the published rule; a large prime, so that neighbouring tokens visit every copy.
inline constexpr std::int64_t kReplicaStride = 23333;

/// Which copy of an expert a token takes when nothing is known of the loads: k = (rank + i * 23333) mod c,
/// where `token` is i, the token's index in its rank's batch. No talk between ranks, no state. The slot is
/// logical_to_physical[expert][k]. Source: system facts, section 6. Needs copies >= 1, rank and token >= 0.
constexpr std::int32_t replica_of(std::int64_t rank, std::int64_t token, std::int32_t copies) {
  // Both terms are reduced first, so that no batch is large enough to overflow.
  const std::int64_t step = (token % copies) * (kReplicaStride % copies);
  return static_cast<std::int32_t>((rank % copies + step) % copies);
}

}  // namespace trimtab::experts
