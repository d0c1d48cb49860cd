#pragma once

#include <CLI/CLI.hpp>

namespace trimtab::apps {

/// pool status, scrub, rebuild.
void add_pool_repair(CLI::App& pool);
/// pool exercise: known blocks written, read and compared.
void add_pool_exercise(CLI::App& pool);

}  // namespace trimtab::apps
