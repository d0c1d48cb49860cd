#pragma once

#include <CLI/CLI.hpp>

namespace trimtab::apps {

/// For `transform`: a size above 0, as 512M or 3T. (CLI11's own takes -5 for 2^64 - 5.)
CLI::Validator size_value();

}  // namespace trimtab::apps
