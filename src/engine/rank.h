#pragma once

#include <cstdint>
#include <string>

#include "model/cluster_config.h"
#include "model/ids.h"
#include "model/profile.h"

namespace trimtab::engine {

/// One process of a prefill engine or decode group.
struct RankOptions {
  model::ClusterConfig config;
  model::Profile profile;
  model::Role role = model::Role::kPrefill;  // kPrefill or kDecode
  std::uint32_t engine = 0, rank = 0;
  std::string model_path;   // GGUF
  std::string runtime_dir;  // control.sock and kv.sock
  std::string shm_dir;      // group-<p|d><engine>, kv-<p|d><engine>-<rank>.<pid>
};

/// Joins its group, dials the control process, serves until Shutdown, SIGTERM or the loss of a peer or of the
/// control process. Returns an exit code: 0 after Shutdown or SIGTERM (its own or a peer's), 1 otherwise,
/// with one line on standard error.
int run_rank(const RankOptions& options);

}  // namespace trimtab::engine
