#pragma once

#include <CLI/CLI.hpp>

#include "apps/instance.h"

namespace trimtab::apps {

/// --config, --port, --model-path, --state-dir, --profiles-dir.
void add_instance_options(CLI::App& command, InstanceOptions& options);

/// Ends the command: an error is one line on stderr and exit code 1, and so is output that could not be
/// written.
void finish(const base::Status& status);

// Each adds one subcommand whose callback throws CLI::RuntimeError(exit code) when it ends with other than 0.
void add_serve(CLI::App& app);
void add_roles(CLI::App& app);    // gateway, engine, encoder, kv-loader: the processes that `serve` starts
void add_tools(CLI::App& app);    // config, tokenize, logits
void add_explain(CLI::App& app);  // explain, status
void add_simulate(CLI::App& app);
void add_replay(CLI::App& app);
void add_experts(CLI::App& app);  // experts plan, evaluate, moves, export, advise, synthesize
void add_cost(CLI::App& app);     // cost fit
void add_pool(CLI::App& app);     // pool layout, swap-in
void add_kv_target(CLI::App& app);

}  // namespace trimtab::apps
