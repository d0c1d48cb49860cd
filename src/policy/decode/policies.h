#pragma once

#include <memory>

#include "policy/decode/policy.h"

/// The one line of each decode policy. To add one: write `<name>.cpp` with a class over `DecodePolicy` that
/// overrides `choose`, and `std::unique_ptr<DecodePolicy> make_<name>(const DecodeConfig&)`; add its line
/// here. The tests and benches of this folder then run over it too.
#define TRIMTAB_DECODE_POLICIES(POLICY) \
  POLICY(waterline)                     \
  POLICY(dualpath)                      \
  POLICY(dualpath_queues)               \
  POLICY(round_robin)                   \
  POLICY(total_requests)                \
  POLICY(total_tokens)                  \
  POLICY(waterline_hazard)              \
  POLICY(waterline_hold)                \
  POLICY(least_potential)

namespace trimtab::policy {

#define TRIMTAB_DECLARE(name) std::unique_ptr<DecodePolicy> make_##name(const DecodeConfig& config);
TRIMTAB_DECODE_POLICIES(TRIMTAB_DECLARE)
#undef TRIMTAB_DECLARE

}  // namespace trimtab::policy
