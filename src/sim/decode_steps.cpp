// What a decode group's steps take.
#include <algorithm>

#include "model/decode_speed.h"
#include "sim/decode_group.h"
#include "sim/step_overlap.h"

namespace trimtab::sim {

/// Rows that a rank computes: one a request, and its drafts.
double DecodeGroup::rows_of(std::size_t rank) const {
  return verify_ ? verify_->rows()[rank] : static_cast<double>(ranks_[rank].seats.size());
}

double DecodeGroup::rows_sum() const {
  if (!verify_) return static_cast<double>(running_);
  double sum = 0;
  for (const double rows : verify_->rows()) sum += rows;
  return sum;
}

double DecodeGroup::padded(double rows) const {
  if (verify_) return verify_->padded(rows);
  const std::vector<std::int64_t>& sizes = scenario_.profile.decode_step.graph_sizes;
  const auto fits = std::ranges::lower_bound(sizes, static_cast<std::int64_t>(rows));
  return fits == sizes.end() ? rows : static_cast<double>(*fits);
}

void DecodeGroup::set_speeds() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto permille = model::speed_permille(scenario_.cluster.decode, engine_.value, r);
    const double speed = static_cast<double>(permille) / 1000;
    ranks_[r].slowness = 1 / speed;
    speeds_ += speed;
    slowest_ = r == 0 ? ranks_[r].slowness : std::max(slowest_, ranks_[r].slowness);
  }
}

/// Of the step that comes `ahead` steps after the current one.
StepTimes DecodeGroup::step_times(std::uint64_t ahead) const {
  // What a slow rank has counts for as much as it takes longer; what is ideal is even over the ranks' speeds.
  double kv_slowest = 0, kv_sum = 0, rows_slowest = 0, rows_most = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const double kv = ranks_[r].kv + growth_of(ranks_[r]) * static_cast<double>(ahead);
    kv_slowest = std::max(kv_slowest, kv * ranks_[r].slowness);
    kv_sum += kv;
    rows_slowest = std::max(rows_slowest, rows_of(r) * ranks_[r].slowness);
    rows_most = std::max(rows_most, rows_of(r));
  }
  if (verify_) {
    rows_most = std::max(rows_most, verify_->rows_most());
    rows_slowest = std::max(rows_slowest, verify_->rows_most());
  }
  const double mean = rows_sum() / static_cast<double>(ranks_.size());
  const double kv_even = kv_sum / speeds_, rows_even = rows_sum() / speeds_;
  const double row = cost_.dispatch + cost_.sampler_row;
  StepTimes times;
  times.ideal = cost_.fixed + cost_.unprofiled + cost_.sampler + cost_.attention * kv_sum / speeds_ +
                row * rows_even + cost_.moe(mean);
  times.attention_wait = cost_.attention * (kv_slowest - kv_even);
  times.batch_wait = row * (rows_slowest - rows_even);
  double moe = mean;
  if (verify_ || !scenario_.profile.decode_step.graph_sizes.empty()) {
    // Every rank computes the largest rank's batch, padded.
    moe = padded(rows_most);
    times.padding = row * (moe * slowest_ - rows_slowest) + cost_.moe(moe) - cost_.moe(mean);
  }
  const double fresh = cost_.moe(moe * (load_.balance - load_.avoidable));
  times.expert_imbalance = fresh - cost_.moe(moe);
  times.expert_drift = cost_.moe(moe * load_.balance) - fresh;
  times.expert_moves = load_.stall_ns;
  if (experts_) times.expert_copies = experts_->copies_ns();
  if (scenario_.overlap.enabled) overlap(times, kv_slowest, rows_slowest, moe);
  return times;
}

/// Two micro-batches where they pay. Experts' weights are in the fixed part where drafts are not modelled.
void DecodeGroup::overlap(StepTimes& times, double kv_most, double most, double moe_rows) const {
  OverlapParts parts;
  parts.attention = cost_.attention * kv_most;
  parts.experts = cost_.moe(moe_rows * load_.balance);
  parts.experts_least = cost_.moe_least;
  if (cost_.moe_least == 0) {
    const double weights = expert_weights_ns(scenario_, static_cast<double>(ranks_.size()));
    parts.weights = std::min(weights, cost_.fixed);
  }
  parts.weights += times.expert_copies;
  const double rows = std::max(most, verify_ ? moe_rows : most);
  parts.network = cost_.dispatch * rows;
  save(times, overlap_saving(parts, rows, moe_layers(scenario_), policy::kDecodeCosts));
}

/// Fast: rows and expert load of the steps to come.
void DecodeGroup::look_ahead() {
  if (running_ == 0) return;
  if (verify_) {
    double kv_most = 0;
    requests_.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      requests_[r] = static_cast<std::int64_t>(ranks_[r].seats.size());
      kv_most = std::max(kv_most, ranks_[r].kv);
    }
    verify_->plan(requests_, kv_most, load_.balance);
  }
  if (experts_) load_ = experts_->expected(rows_sum());
}

/// Exact: how many drafts the step verifies.
void DecodeGroup::choose_rows() {
  if (!verify_) return;
  drafts_.resize(ranks_.size());
  kv_.resize(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    drafts_[r].clear();
    for (const Seat& seat : ranks_[r].seats) drafts_[r].push_back(seat.draft);
    kv_[r] = ranks_[r].kv;
  }
  verify_->choose(drafts_, kv_);
}

/// What the engine will have measured when the step is over.
void DecodeGroup::note_verified(const StepTimes& times) {
  double rows = 0, kv = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    rows = std::max(rows, rows_of(r));
    kv = std::max(kv, kv_[r]);
  }
  verified_.sampler_ns = cost_.sampler + cost_.sampler_row * padded(rows);
  verified_.forward_ns = times.sum() - verified_.sampler_ns;
  verified_.kv_most = static_cast<std::int64_t>(kv);
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
  const StepTimes first = step_times(0);
  std::uint64_t low = 0, high = static_cast<std::uint64_t>(span.value / first.whole().value) + 1;
  // Steps grow slowly: the answer is mostly just below the bound. Down from it in strides that double, then
  // the middle between the last two.
  for (std::uint64_t stride = 1; low < high; stride *= 2) {
    const std::uint64_t steps = high > stride ? high - stride : 0;
    if (steps == 0 || span_of(first, step_times(steps - 1), steps) <= span) {
      low = steps;
      break;
    }
    high = steps - 1;
  }
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (span_of(first, step_times(middle - 1), middle) <= span) {
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
  if (experts_) experts_->advance(steps, rows_sum());
  for (Rank& rank : ranks_) rank.kv += growth_of(rank) * static_cast<double>(steps);
  look_ahead();
}

}  // namespace trimtab::sim
