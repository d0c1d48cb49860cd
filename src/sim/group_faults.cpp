// What the death of an engine does to its simulated group. Only a whole group can die: its ranks step
// together.
#include "sim/decode_group.h"
#include "sim/prefill_group.h"

namespace trimtab::sim {

void PrefillGroup::set_ready(std::uint32_t rank, RequestId id, TokenCount ready) {
  const bool here = ranks_[rank].scheduler.set_ready(id, ready) || long_->set_ready(id, ready);
  if (here && !stepping_) begin();
}

void PrefillGroup::lose() {
  if (stepping_) lost_.add(host_.queue().now() - began_);
  for (Rank& rank : ranks_) rank.plan = {};
  long_plan_ = {};
  stepping_ = false;
  ++version_;
}

void DecodeGroup::lose() {
  // The closed form is behind what its clients have seen; step by step there is nothing to catch up with.
  if (scenario_.speed == SimulationSpeed::kFast) report_all();
  // Fast: the whole steps until now are done, and another is under way.
  if (running_ > 0) lost_.add(std::max(host_.queue().now() - at_, Nanos{}));
  for (Rank& rank : ranks_) {
    for (const Seat& seat : rank.seats) {
      SimRequest& request = host_.request(seat.slot);
      request.running = false;
      ++request.decode_pass;
      if (verify_ && scenario_.speed == SimulationSpeed::kExact) verify_->remove(seat.draft);
    }
    rank = {};
  }
  finishes_.clear();
  running_ = 0;
  stepping_ = false;
  ++version_;
}

}  // namespace trimtab::sim
