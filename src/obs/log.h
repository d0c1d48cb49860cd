#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace trimtab::obs {

/// Sends this process's log lines to stderr as `time level [who] message`. The level comes from TRIMTAB_LOG
/// (debug, info, warn, error), else info. `who` names the process: "gateway", "prefill 0.1".
void start_log(const std::string& who);

}  // namespace trimtab::obs
