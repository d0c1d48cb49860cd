#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "config/strict_table.h"
#include "model/scenario.h"

namespace trimtab::config {

/// Appends the tables [[fault]] of a file to the plan: a fault plan of its own, or a scenario.
///
///   [[fault]]
///   kind = "engine"        # rank, engine, storage_node, entrypoint, queue, drain, late_start
///   role = "decode"        # of a rank, an engine, a drain, a late start: prefill, decode, vision
///   targets = [0, 3]       # absent: all
///   at_s = 60              # or at random: rate_per_hour (of each target), or down_share of its time
///   for_s = 30             # absent: for good
///   start_up_s = 20        # engines: then until they serve
///
/// Errors are those of StrictTable::finish: unknown keys (the nearest is named), and values that contradict
/// one another.
void read_faults(StrictTable root, model::FaultPlan& out);
/// A file that has `seed` and faults only.
base::Result<model::FaultPlan> load_fault_plan(const std::string& path);
base::Result<model::FaultPlan> parse_fault_plan(std::string_view text, const std::string& origin);

/// The parts beside the engines, tables of [simulation]: [simulation.storage], [simulation.encoder],
/// [simulation.reports], [simulation.entrypoints].
void read_cluster_parts(StrictTable simulation, model::Scenario& out);

}  // namespace trimtab::config
