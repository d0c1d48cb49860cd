#include "apps/experts_commands.h"
namespace trimtab::apps {
void add_experts_advise(CLI::App&) {}
}  // namespace trimtab::apps
