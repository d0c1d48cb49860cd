#pragma once

#include <string>

#include "apps/instance.h"

namespace trimtab::apps {

/// What cannot work of the pool's configuration, as far as it can be told before anything starts; what is
/// merely worth knowing goes to stderr, each line begun with `who`.
base::Status check_pool(const Instance& instance, const std::string& who);

}  // namespace trimtab::apps
