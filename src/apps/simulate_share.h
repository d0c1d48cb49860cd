#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/share.h"

namespace trimtab::apps {

/// The flags of `trimtab simulate --share`.
struct ShareFlags {
  bool share = false, without_capacity = false;
  std::uint64_t seeds = 3;
  double precision = 0.01;
  std::vector<std::string> stages = {"whole", "prefill", "decode"};
};
CLI::Option* add_share_flags(CLI::App& command, ShareFlags& flags);

/// Measures and prints. Errors: the simulation's, and broken conservation; then nothing is printed.
base::Status simulate_share(const model::Scenario& scenario, const model::Trace& trace,
                            const sim::WorkloadOptions& workload, const ShareFlags& flags, bool as_json,
                            bool shows);

}  // namespace trimtab::apps
