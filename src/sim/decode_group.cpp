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
      capacity_(scenario.cluster.decode.kv_blocks * model::kBlockTokens),
      ranks_(scenario.cluster.decode.ranks) {
  load_.balance = scenario.decode.expert_balance;
  if (scenario.experts.policy != model::ExpertPolicy::kConstant) {
    experts_.emplace(scenario, scenario.experts.decode, scenario.cluster.decode.ranks,
                     0xdec0deULL << 32U | engine.value);
  }
}

void DecodeGroup::join() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    host_.tell(cluster::Joined{{Role::kDecode, engine_, r}, scenario_.cluster.decode.kv_blocks});
  }
}

/// Of the step that comes `ahead` steps after the current one.
StepTimes DecodeGroup::step_times(std::uint64_t ahead) const {
  const model::DecodeStepCost& cost = scenario_.profile.decode_step;
  const double growth = scenario_.decode.tokens_per_step * static_cast<double>(ahead);
  double kv_most = 0, kv_sum = 0;
  std::int64_t most = 0;
  for (const Rank& rank : ranks_) {
    const auto count = static_cast<std::int64_t>(rank.seats.size());
    const double kv = rank.kv + static_cast<double>(count) * growth;
    kv_most = std::max(kv_most, kv);
    kv_sum += kv;
    most = std::max(most, count);
  }
  const auto ranks = static_cast<double>(ranks_.size());
  const double mean = static_cast<double>(running_) / ranks;
  StepTimes times;
  times.ideal = static_cast<double>(cost.fixed.value) + cost.attention_ns_per_kv_token * kv_sum / ranks +
                (cost.dispatch_ns_per_request + cost.moe_ns_per_request) * mean;
  times.attention_wait = cost.attention_ns_per_kv_token * (kv_most - kv_sum / ranks);
  times.batch_wait = cost.dispatch_ns_per_request * (static_cast<double>(most) - mean);
  double moe = mean;
  if (!cost.graph_sizes.empty()) {
    const auto fits = std::ranges::lower_bound(cost.graph_sizes, most);
    const auto padded = static_cast<double>(fits == cost.graph_sizes.end() ? most : *fits);
    // Every rank computes the largest rank's batch, padded.
    times.padding = cost.dispatch_ns_per_request * (padded - static_cast<double>(most)) +
                    cost.moe_ns_per_request * (padded - mean);
    moe = padded;
  }
  times.expert_imbalance = cost.moe_ns_per_request * moe * (load_.balance - load_.avoidable - 1.0);
  times.expert_drift = cost.moe_ns_per_request * moe * load_.avoidable;
  times.expert_moves = load_.stall_ns;
  if (experts_) times.expert_copies = experts_->copies_ns();
  return times;
}

/// Fast: what the experts' ranks are expected to do in the steps to come.
void DecodeGroup::look_at_experts() {
  if (experts_ && running_ > 0) load_ = experts_->expected(static_cast<double>(running_));
}

/// Of `steps` steps from `first` to `last`.
Nanos DecodeGroup::span_of(const StepTimes& first, const StepTimes& last, std::uint64_t steps) {
  const Nanos ends = first.whole() + last.whole();
  return Nanos{
      static_cast<std::int64_t>(static_cast<__int128>(ends.value) * static_cast<std::int64_t>(steps) / 2)};
}

Nanos DecodeGroup::span_of(std::uint64_t steps) const {
  return steps == 0 ? Nanos{} : span_of(step_times(0), step_times(steps - 1), steps);
}

/// The most steps that end within the span: the inverse of span_of, which grows by at least the first step's
/// time.
std::uint64_t DecodeGroup::steps_within(Nanos span) const {
  if (span.value <= 0) return 0;
  std::uint64_t low = 0, high = static_cast<std::uint64_t>(span.value / step_time(0).value) + 1;
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (span_of(middle) <= span) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void DecodeGroup::go(std::uint64_t steps) {
  if (steps == 0) return;
  const StepTimes first = step_times(0), last = step_times(steps - 1);
  const Nanos span = span_of(first, last, steps);
  at_ += span;
  busy_ += span;
  const double half = static_cast<double>(steps) / 2;
  times_.add(first, half).add(last, half);
  if (Recorder* recorder = host_.recorder()) {
    StepTimes all;
    all.add(first, half).add(last, half);
    recorder->decode_steps(engine_.value, step_ + 1, steps, at_ - span, span, all, running_);
  }
  step_ += steps;
  if (experts_) experts_->advance(steps, static_cast<double>(running_));
  look_at_experts();
  for (Rank& rank : ranks_) {
    rank.kv += static_cast<double>(rank.seats.size()) * scenario_.decode.tokens_per_step *
               static_cast<double>(steps);
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
  if (scenario_.speed == SimulationSpeed::kFast) seat.finishes = step_ + draw_steps(left);
  rank.seats.push_back(seat);
  ++running_;
  if (scenario_.speed == SimulationSpeed::kFast) {
    finishes_.push_back({seat.finishes, slot, request.decode_pass});
    std::ranges::push_heap(finishes_, std::greater{});
  }
  wake();
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
  rank.kv -= static_cast<double>(request.prompt + request.generated + drawn_by(*seat) - seat->told);
  if (rank.seats.size() == 1) rank.kv = 0;  // what rounding of the growth left over
  *seat = rank.seats.back();
  rank.seats.pop_back();
  request.running = false;
  --running_;
  wake();
}

/// Tokens that the seat has drawn by the current step.
std::int64_t DecodeGroup::drawn_by(const Seat& seat) const {
  if (scenario_.speed == SimulationSpeed::kExact) return seat.drawn;
  if (step_ >= seat.finishes) return seat.left;
  const double drawn = static_cast<double>(step_ - seat.joined) * scenario_.decode.tokens_per_step;
  return std::min(seat.left, static_cast<std::int64_t>(drawn));
}

bool DecodeGroup::overflows(const Rank& rank, std::uint64_t ahead) const {
  const double growth =
      static_cast<double>(rank.seats.size()) * scenario_.decode.tokens_per_step * static_cast<double>(ahead);
  return rank.kv + growth > static_cast<double>(capacity_) && rank.seats.size() > 1;
}

std::uint64_t DecodeGroup::steps_to_overflow() const {
  std::uint64_t least = UINT64_MAX;
  for (const Rank& rank : ranks_) {
    if (rank.seats.size() < 2) continue;
    const double growth = static_cast<double>(rank.seats.size()) * scenario_.decode.tokens_per_step;
    const double steps = std::max(0.0, static_cast<double>(capacity_) - rank.kv) / growth;
    least = std::min(least, static_cast<std::uint64_t>(steps) + 1);
  }
  return least;
}

void DecodeGroup::wake() {
  if (scenario_.speed == SimulationSpeed::kExact) {
    if (stepping_ || running_ == 0) return;
    stepping_ = true;
    if (experts_) load_ = experts_->step(static_cast<double>(running_));
    const StepTimes times = step_times(0);
    const Nanos span = times.whole();
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
  look_at_experts();
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
  for (Rank& rank : ranks_) {
    for (Seat& seat : rank.seats) {
      if (seat.joined == step_) continue;
      const std::int64_t taken = std::min(draw(), seat.left - seat.drawn);
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
    const SimRequest& request = host_.request(slot);
    rank.kv -= static_cast<double>(request.prompt + request.generated);
    *seat = rank.seats.back();
    rank.seats.pop_back();
    host_.request(slot).running = false;
    --running_;
  }
  if (rank.seats.empty()) rank.kv = 0;
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
