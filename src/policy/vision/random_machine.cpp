#include "base/prng.h"
#include "policy/vision/policies.h"

namespace trimtab::policy {
namespace {

/// **Random machine, fewest patches.** Every prefill machine draws a vision machine at random among those
/// alive, then takes the encoder on it with the fewest image patches in flight (ties: lowest id).
///
/// *Why.* Many prefill machines choose at once without talking to each other. If all took the globally
/// lightest machine of a common, slightly old view they would herd onto it; a random draw spreads them, and
/// the exact local view on the drawn machine does the balancing. Patches, not images, because an encoder's
/// time grows with them. *Source.* System facts, section 5. *Cost.* O(encoders of one machine). *Weakness.*
/// Blind to load between machines: with few machines and large images one can queue while another idles, and
/// machines of unequal size get equal shares.
class RandomMachine final : public EncoderLedger {
 public:
  explicit RandomMachine(const VisionConfig& config) : prng_(config.seed, 0x7651'6572) {}

  VisionDecision decide(std::int64_t /*patches*/) override {
    VisionDecision decision;
    if (open_machines().empty()) return decision;
    const std::size_t drawn = open_machines()[prng_.below(open_machines().size())];
    decision.encoder = lightest_of(machine(drawn), decision.reason);
    return decision;
  }

 private:
  base::Prng prng_;
};

}  // namespace

std::unique_ptr<VisionPolicy> make_random_machine(const VisionConfig& config) {
  return std::make_unique<RandomMachine>(config);
}

}  // namespace trimtab::policy
