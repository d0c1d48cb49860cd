#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/scenario.h"
#include "model/trace.h"
#include "sim/recording.h"
#include "sim/result.h"

namespace trimtab::apps {

/// One simulation, and what it was of.
struct Run {
  std::string decode_policy, prefill;
  std::string experts = "constant",
              verify = "off";  // who balances experts, and says what drafts are verified
  double rate = 1;
  double cpu_s = 0;
  sim::Result result;
  std::optional<sim::Recording> recording;  // when files are to be written from it
};

/// "repair, group, waterline": the decode side's policies, without what is not modelled.
std::string decode_name(const Run& run);

/// Tables for a terminal: runs side by side, where the steps' time went, and for a single run its tiers.
/// `capacity`: the rates are found ones.
void print_runs(const std::vector<Run>& runs, const model::Trace& trace, const model::Scenario& scenario,
                bool capacity);
std::string runs_json(const std::vector<Run>& runs, const model::Trace& trace,
                      const model::Scenario& scenario);

}  // namespace trimtab::apps
