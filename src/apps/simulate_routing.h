#pragma once

#include <string>

#include "base/error.h"
#include "model/scenario.h"

namespace trimtab::apps {

/// Reads the recorded routing that the scenario names ([simulation.experts] routing; beside the scenario's
/// file unless the path is absolute) into its experts. Without one nothing is done. Errors: the reader's; a
/// scenario in which `experts_modelled` says that nothing would use it.
base::Status read_routing(model::Scenario& scenario, const std::string& scenario_path, bool experts_modelled);

}  // namespace trimtab::apps
