#include "policy/eviction/policies.h"

#include <string>

#include "base/nearest.h"

namespace trimtab::eviction {
namespace {

struct Known {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const Settings&);
};
constexpr Known kKnown[] = {
    {"lru", make_lru}, {"fifo", make_fifo}, {"s3_fifo", make_s3_fifo}, {"hit_density", make_hit_density}};
constexpr std::string_view kNames[] = {"lru", "fifo", "s3_fifo", "hit_density"};

}  // namespace

std::span<const std::string_view> policy_names() { return kNames; }

base::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Settings& settings) {
  if (settings.capacity_blocks < 1) {
    return base::fail(base::Code::kInvalidArgument,
                      "a store of " + std::to_string(settings.capacity_blocks) +
                          " blocks has nothing to choose from: at least 1",
                      "capacity_blocks");
  }
  for (const Known& known : kKnown) {
    if (known.name == name) return known.make(settings);
  }
  const std::string nearest = base::nearest(std::string(name), kNames);
  return base::fail(base::Code::kInvalidArgument,
                    "there is no eviction order \"" + std::string(name) + "\"" +
                        (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") +
                        " Known: lru, fifo, s3_fifo, hit_density",
                    "eviction");
}

}  // namespace trimtab::eviction
