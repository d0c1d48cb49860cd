#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "io/expert_maps.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::apps {

// Each adds one subcommand of `trimtab experts`.
void add_experts_plan(CLI::App& experts);
void add_experts_evaluate(CLI::App& experts);
void add_experts_moves(CLI::App& experts);
void add_experts_export(CLI::App& experts);
void add_experts_advise(CLI::App& experts);
void add_experts_synthesize(CLI::App& experts);

/// --format: a name, or by the file's: .npz is npz, expert_map.json is vllm-ascend, other .json is sglang.
base::Result<io::MapFormat> format_of(const std::string& path, const std::string& format);
/// What an engine is told with the file that was written.
std::string usage_of(io::MapFormat format, const std::string& path, const experts::Shape& shape);

/// --effort and --scope as the planner's.
experts::Effort effort_of(const std::string& name);
experts::Scope scope_of(const std::string& name);

}  // namespace trimtab::apps
