#pragma once

namespace trimtab::model {

/// Two-batch overlap in simulated steps: a step runs as two micro-batches, one computing while the other's
/// tokens travel, where policy/overlap says that it pays.
struct OverlapSwitch {
  bool enabled = false;
  /// How much of a prefill token's time its journey to the experts and back takes; the decode step's is the
  /// profile's dispatch_ns_per_request. 0: prefill has nothing to overlap.
  double prefill_network_ns_per_token = 0;
};

}  // namespace trimtab::model
