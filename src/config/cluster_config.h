#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "config/strict_table.h"
#include "model/cluster_config.h"

namespace trimtab::config {

/// Loads and checks a cluster configuration. Unknown keys (with the nearest known one), wrong types, numbers
/// out of range and settings that contradict each other are errors that name file, line, value and fix.
base::Result<model::ClusterConfig> load_cluster_config(const std::string& path);
base::Result<model::ClusterConfig> parse_cluster_config(std::string_view text, const std::string& origin);

/// Reads a cluster's tables into `out`, whose values are the defaults; for files that hold more than a
/// cluster. The caller calls `finish`.
void read_cluster(StrictTable& root, model::ClusterConfig& out);

/// Checks what needs the model's profile too: tiers within the context limit, room for one longest request in
/// every arena.
base::Status check_against_profile(const model::ClusterConfig& config, const model::Profile& profile);

/// The configuration as TOML with every key, its value and its meaning: what `trimtab config` prints.
std::string cluster_config_toml(const model::ClusterConfig& config);

}  // namespace trimtab::config
