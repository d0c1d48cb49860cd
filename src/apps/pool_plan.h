#pragma once

#include <CLI/CLI.hpp>

namespace trimtab::apps {

/// pool plan: how long the SSDs last.
void add_pool_plan(CLI::App& pool);

}  // namespace trimtab::apps
