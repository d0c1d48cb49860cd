#pragma once

#include <CLI/CLI.hpp>

namespace trimtab::apps {

// Each adds one command under `trimtab pool`.
void add_pool_swap_in(CLI::App& pool);

}  // namespace trimtab::apps
