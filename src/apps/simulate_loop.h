#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/simulate_report.h"
#include "model/scenario.h"

namespace trimtab::apps {

/// What acts inside the steps: experts' policy and the verification of drafts. Several of each compare.
struct LoopFlags {
  std::vector<std::string> experts, verify;
};

/// --expert-policy and --verify.
void add_loop_flags(CLI::App& command, LoopFlags& flags);
/// The scenario with every combination of what was asked for, its own where nothing was.
std::vector<model::Scenario> loop_scenarios(const model::Scenario& scenario, const LoopFlags& flags);
/// The scenario's policies by their words.
void name_loop(const model::Scenario& scenario, Run& run);

}  // namespace trimtab::apps
