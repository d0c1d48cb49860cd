#include "sim/decode_group.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace trimtab::sim {

using model::Role;

DecodeGroup::DecodeGroup(EngineId engine, const model::Scenario& scenario, Host& host)
    : engine_(engine),
      scenario_(scenario),
      host_(host),
      prng_(scenario.seed, 0x0dec0de0ULL + engine.value),
      cost_(DecodeStep::of(scenario)),
      capacity_(scenario.cluster.decode.kv_blocks * model::kBlockTokens),
      ranks_(scenario.cluster.decode.ranks) {
  set_speeds();
  load_.balance = scenario.decode.expert_balance;
  if (scenario.experts.policy != model::ExpertPolicy::kConstant) {
    experts_.emplace(scenario, scenario.experts.decode, scenario.cluster.decode.ranks,
                     0xdec0deULL << 32U | engine.value);
  }
  if (scenario.verify.policy != model::VerifyPolicy::kOff) {
    verify_ = std::make_unique<VerifyGroup>(scenario, scenario.cluster.decode.ranks);
  }
}

void DecodeGroup::join() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    host_.tell(cluster::Joined{{Role::kDecode, engine_, r}, scenario_.cluster.decode.kv_blocks});
  }
}

void DecodeGroup::catch_up() {
  const Nanos now = host_.queue().now();
  if (running_ == 0) {
    at_ = std::max(at_, now);
  } else if (at_ < now) {
    go(steps_within(now - at_));
  }
}

bool DecodeGroup::reserve(std::uint32_t r, std::uint32_t slot, std::int64_t tokens) {
  if (scenario_.speed == SimulationSpeed::kFast) catch_up();
  Rank& rank = ranks_[r];
  if (rank.kv + static_cast<double>(rank.reserved + tokens) > static_cast<double>(capacity_)) return false;
  rank.reserved += tokens;
  SimRequest& request = host_.request(slot);
  request.reserved_tokens = tokens;
  request.reserved = true;
  return true;
}

void DecodeGroup::start(std::uint32_t slot) {
  SimRequest& request = host_.request(slot);
  Rank& rank = ranks_[request.decode.rank];
  const std::int64_t left = request.output - request.generated;
  if (scenario_.speed == SimulationSpeed::kFast) {
    catch_up();
    if (running_ > 0 && at_ <= host_.queue().now()) go(1);
  }
  rank.reserved -= request.reserved_tokens;
  rank.kv += static_cast<double>(request.prompt + request.generated);
  request.reserved = false;
  request.running = true;
  // A step under way goes on without it.
  const std::uint64_t joined = step_ + (stepping_ ? 1 : 0);
  Seat seat{slot, joined, 0, left, 0, 0, request.decode_pass};
  seat.kv_joined = request.prompt + request.generated;
  seat.tokens_per_step = scenario_.decode.tokens_per_step;
  if (verify_) seat_drafts(seat, request);
  if (scenario_.speed == SimulationSpeed::kFast && !verify_) seat.finishes = step_ + draw_steps(left);
  rank.tokens_per_step += seat.tokens_per_step;
  rank.seats.push_back(seat);
  ++running_;
  if (scenario_.speed == SimulationSpeed::kFast) {
    finishes_.push_back({seat.finishes, slot, request.decode_pass});
    std::ranges::push_heap(finishes_, std::greater{});
  }
  wake();
}

/// The request's drafts: how fast they make it, or a place for what is drawn.
void DecodeGroup::seat_drafts(Seat& seat, const SimRequest& request) {
  const std::uint64_t number = request.id.value >> Host::kSlotBits;  // the same under every policy
  if (scenario_.speed == SimulationSpeed::kExact) {
    seat.draft = verify_->add(number);
    seat.tokens_per_step = verify_->tokens_of_all();
    return;
  }
  seat.tokens_per_step = verify_->tokens_per_step(number, request.decode.rank);
  seat.finishes = step_ + verify_->steps_for(number, request.decode.rank, seat.left);
}

std::int64_t DecodeGroup::draw() {
  const double tokens = scenario_.decode.tokens_per_step;
  const auto whole = static_cast<std::int64_t>(tokens);
  const double part = tokens - static_cast<double>(whole);
  return whole + (part > 0 && prng_.uniform() < part ? 1 : 0);
}

/// How many steps `left` tokens take. What is drawn step by step decides only near the end, where it is drawn
/// here too; the long way there takes the mean.
std::uint64_t DecodeGroup::draw_steps(std::int64_t left) {
  constexpr std::int64_t kDrawn = 64;
  const double tokens = scenario_.decode.tokens_per_step;
  if (tokens == 1.0) return static_cast<std::uint64_t>(left);
  std::uint64_t steps = 0;
  if (left > kDrawn) {
    steps = static_cast<std::uint64_t>(static_cast<double>(left - kDrawn) / tokens);
    left -= static_cast<std::int64_t>(static_cast<double>(steps) * tokens);
  }
  for (; left > 0; ++steps) left -= draw();
  return std::max<std::uint64_t>(steps, 1);
}

void DecodeGroup::remove(std::uint32_t slot) {
  SimRequest& request = host_.request(slot);
  Rank& rank = ranks_[request.decode.rank];
  if (request.reserved) {
    rank.reserved -= request.reserved_tokens;
    request.reserved = false;
  }
  if (!request.running) return;
  if (scenario_.speed == SimulationSpeed::kFast) catch_up();
  const auto seat = std::ranges::find(rank.seats, slot, &Seat::slot);
  leave(rank, static_cast<std::size_t>(seat - rank.seats.begin()));
  request.running = false;
  wake();
}

/// The seat is given up, with what it grew the rank's KV by.
void DecodeGroup::leave(Rank& rank, std::size_t index) {
  Seat& seat = rank.seats[index];
  const double drawn = scenario_.speed == SimulationSpeed::kExact
                           ? static_cast<double>(seat.drawn)
                           : static_cast<double>(step_ - seat.joined) * seat.tokens_per_step;
  rank.kv -= static_cast<double>(seat.kv_joined) + drawn;
  rank.tokens_per_step -= seat.tokens_per_step;
  if (verify_ && scenario_.speed == SimulationSpeed::kExact) verify_->remove(seat.draft);
  seat = rank.seats.back();
  rank.seats.pop_back();
  if (rank.seats.empty()) rank.kv = rank.tokens_per_step = 0;  // what rounding of the growth left over
  --running_;
}

/// Tokens that the seat has drawn by the current step.
std::int64_t DecodeGroup::drawn_by(const Seat& seat) const {
  if (scenario_.speed == SimulationSpeed::kExact) return seat.drawn;
  if (step_ >= seat.finishes) return seat.left;
  const double drawn = static_cast<double>(step_ - seat.joined) * seat.tokens_per_step;
  return std::min(seat.left, static_cast<std::int64_t>(drawn));
}

/// Tokens a step.
double DecodeGroup::growth_of(const Rank& rank) const {
  if (verify_) return rank.tokens_per_step;
  return static_cast<double>(rank.seats.size()) * scenario_.decode.tokens_per_step;
}

bool DecodeGroup::overflows(const Rank& rank, std::uint64_t ahead) const {
  return rank.kv + growth_of(rank) * static_cast<double>(ahead) > static_cast<double>(capacity_) &&
         rank.seats.size() > 1;
}

std::uint64_t DecodeGroup::steps_to_overflow() const {
  std::uint64_t least = UINT64_MAX;
  for (const Rank& rank : ranks_) {
    if (rank.seats.size() < 2) continue;
    const double steps = std::max(0.0, static_cast<double>(capacity_) - rank.kv) / growth_of(rank);
    least = std::min(least, static_cast<std::uint64_t>(steps) + 1);
  }
  return least;
}

void DecodeGroup::wake() {
  if (scenario_.speed == SimulationSpeed::kExact) {
    if (stepping_ || running_ == 0) return;
    stepping_ = true;
    at_ = host_.queue().now();  // until the step is over, where it began
    choose_rows();
    if (experts_) load_ = experts_->step(rows_sum());
    const StepTimes times = step_times(0);
    const Nanos span = times.whole();
    if (verify_) note_verified(times);
    busy_ += span;
    times_.add(times);
    if (Recorder* recorder = host_.recorder()) {
      recorder->decode_steps(engine_.value, step_ + 1, 1, host_.queue().now(), span, times, running_);
    }
    host_.queue().after(span, EventKind::kDecode, engine_.value, ++version_);
    return;
  }
  ++version_;
  while (!finishes_.empty()) {
    const Finish& first = finishes_.front();
    const SimRequest& request = host_.request(first.slot);
    if (request.running && request.decode_pass == first.pass) break;
    std::ranges::pop_heap(finishes_, std::greater{});
    finishes_.pop_back();
  }
  if (finishes_.empty()) return;
  look_ahead();
  const std::uint64_t first = finishes_.front().step;
  std::uint64_t ahead = first > step_ ? first - step_ : 0;
  ahead = std::min(ahead, steps_to_overflow());
  if (experts_) ahead = std::min(ahead, experts_->steps_to_change());
  host_.queue().at(at_ + span_of(ahead), EventKind::kDecode, engine_.value, version_);
}

void DecodeGroup::woken(std::uint64_t version) {
  if (version != version_) return;
  if (scenario_.speed == SimulationSpeed::kExact) {
    exact_step();
  } else {
    fast_woken();
  }
}

void DecodeGroup::fast_woken() {
  catch_up();
  std::vector<std::uint32_t> touched;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    const auto done = [this](const Seat& seat) { return seat.finishes <= step_; };
    if (std::ranges::any_of(ranks_[r].seats, done)) touched.push_back(r);
  }
  for (const std::uint32_t r : touched) report(r, true);
  preempt();
  wake();
}

void DecodeGroup::exact_step() {
  stepping_ = false;
  ++step_;
  at_ = host_.queue().now();
  if (verify_) verify_->learn(verified_);
  for (Rank& rank : ranks_) {
    for (Seat& seat : rank.seats) {
      if (seat.joined == step_) continue;
      const std::int64_t tokens = verify_ ? verify_->take(seat.draft) : draw();
      const std::int64_t taken = std::min(tokens, seat.left - seat.drawn);
      seat.drawn += taken;
      rank.kv += static_cast<double>(taken);
    }
  }
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].seats.empty()) report(r, false);
  }
  preempt();
  wake();
}

void DecodeGroup::report_all() {
  if (running_ == 0) return;
  catch_up();
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].seats.empty()) report(r, false);
  }
}

void DecodeGroup::report(std::uint32_t r, bool only_finished) {
  Rank& rank = ranks_[r];
  cluster::DecodeStepped event;
  event.from = {engine_, r};
  event.step = step_;
  std::vector<std::uint32_t> ended;
  for (Seat& seat : rank.seats) {
    SimRequest& request = host_.request(seat.slot);
    const std::int64_t drawn = drawn_by(seat);
    const bool done = drawn >= seat.left;
    if (only_finished && !done) continue;
    const std::int64_t fresh = drawn - seat.told;
    if (fresh <= 0 && !done) continue;
    seat.told = drawn;
    request.generated += fresh;
    event.tokens.push_back({request.id, done ? model::FinishReason::kStop : model::FinishReason::kNone,
                            static_cast<std::uint32_t>(fresh)});
    if (done) ended.push_back(seat.slot);
  }
  for (const std::uint32_t slot : ended) {
    const auto seat = std::ranges::find(rank.seats, slot, &Seat::slot);
    leave(rank, static_cast<std::size_t>(seat - rank.seats.begin()));
    host_.request(slot).running = false;
  }
  event.running = static_cast<std::int64_t>(rank.seats.size());
  event.kv = TokenCount{static_cast<std::int64_t>(rank.kv)};
  event.blocks_free = (capacity_ - event.kv.value - rank.reserved) / model::kBlockTokens;
  host_.tell(std::move(event));
}

// The youngest yields: it has the least to lose. Its blocks are in the pool.
void DecodeGroup::preempt() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    while (overflows(rank, 1)) {
      const auto victim = std::ranges::max_element(
          rank.seats, {}, [](const Seat& seat) { return std::pair(seat.joined, seat.slot); });
      const std::uint32_t slot = victim->slot;
      report(r, false);  // the machine hears of all tokens before the preemption
      SimRequest& request = host_.request(slot);
      if (!request.running) continue;  // that report was its last
      const RequestId id = request.id;
      const std::int64_t generated = request.generated;
      remove(slot);
      ++request.decode_pass;
      ++preemptions_;
      host_.tell(cluster::Preempted{{engine_, r}, id, TokenCount{generated}, "its rank is full"});
    }
  }
}

}  // namespace trimtab::sim
