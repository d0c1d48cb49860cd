#include "kv_target/target.h"

#include <fmt/format.h>

namespace trimtab::kv_target {

std::string to_string(const ShardName& name) {
  return fmt::format("{:016x}{:016x}/{}", name.key.high, name.key.low, name.shard);
}

std::string_view name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kMissing:
      return "missing";
    case Outcome::kFull:
      return "full";
    case Outcome::kTooLarge:
      return "too large";
    case Outcome::kDamaged:
      return "damaged";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace trimtab::kv_target
