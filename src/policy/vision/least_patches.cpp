#include "policy/vision/policies.h"

namespace trimtab::policy {
namespace {

/// **Fewest patches everywhere**: the encoder with the fewest patches in flight of all machines (ties: lowest
/// id). For one placer that carries all vision work its view is exact, and nothing herds. *Source.* Own, the
/// obvious alternative to the guide's rule. *Cost.* O(encoders). *Weakness.* With several independent placers
/// all of them pick the same encoder until its load shows.
class LeastPatches final : public EncoderLedger {
 public:
  explicit LeastPatches(const VisionConfig& /*config*/) {}

  VisionDecision decide(std::int64_t /*patches*/) override {
    VisionDecision decision;
    std::int64_t least = 0;
    for (const std::size_t index : open_machines()) {
      VisionReason reason;
      const model::EncoderId encoder = lightest_of(machine(index), reason);
      const std::int64_t patches = patches_in_flight(encoder);
      if (decision.encoder && patches >= least) continue;
      least = patches;
      decision = {encoder, std::move(reason)};
    }
    return decision;
  }
};

}  // namespace

std::unique_ptr<VisionPolicy> make_least_patches(const VisionConfig& config) {
  return std::make_unique<LeastPatches>(config);
}

}  // namespace trimtab::policy
