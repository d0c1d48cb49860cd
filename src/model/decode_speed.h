#pragma once

#include <cstdint>

#include "model/cluster_config.h"

namespace trimtab::model {

/// `decode.speeds_permille` has a value for each group, or for each rank, group by group; 1000 without any.
inline std::int64_t speed_permille(const DecodeConfig& config, std::size_t group, std::size_t rank) {
  if (config.speeds_permille.empty()) return 1000;
  const bool by_group = config.speeds_permille.size() == config.groups;
  return config.speeds_permille.at(by_group ? group : group * config.ranks + rank);
}

}  // namespace trimtab::model
