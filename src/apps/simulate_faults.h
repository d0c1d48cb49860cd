#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "model/scenario.h"
#include "sim/recording.h"
#include "sim/result.h"

namespace CLI {
class App;
}

namespace trimtab::apps {

/// --faults: `path` is where the plan is.
void add_fault_option(CLI::App& command, std::string& path);
/// The plan's faults join those of the scenario; an empty path changes nothing.
base::Status add_faults(model::Scenario& scenario, const std::string& path);

/// What went wrong, what storage nodes read, what vision did, how busy networks were; with a recording, when
/// faults struck and how experts lay on their ranks. Empty parts are left out.
nlohmann::json outcomes_json(const sim::Result& result, const sim::Recording* recording);
std::string outcomes_text(const sim::Result& result);

}  // namespace trimtab::apps
