#include "sim/recorder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trimtab::sim {

using base::Nanos;

namespace {

constexpr std::int64_t kFirstWidthNs = 1LL << 24;  // 17 ms; 256 of them are 4 s

void add_all(std::vector<double>& to, const std::vector<double>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

Percentiles percentiles(const Distribution& of) {
  return {of.count(), of.quantile_s(0.5), of.quantile_s(0.9), of.quantile_s(0.99)};
}

}  // namespace

void Recorder::start(RecorderShape shape) {
  TRIMTAB_CHECK(options_.buckets_max >= 2 && options_.buckets_max % 2 == 0, "pairs of buckets must exist");
  shape_ = std::move(shape);
  begun_ = false;
  width_ = Nanos{kFirstWidthNs};
  buckets_.clear();
  requests_.clear();
  spans_.clear();
  spans_left_out_ = 0;
  faults_.clear();
  faults_left_out_ = 0;
  prefill_experts_ = decode_experts_ = {};
}

void Recorder::begin(Nanos at) {
  if (begun_) return;
  begun_ = true;
  origin_ = next_sample_ = at;
}

Recorder::Bucket Recorder::empty() const {
  Bucket bucket;
  bucket.tiers.resize(shape_.report_bounds_tokens.size() + 1);
  bucket.queued.resize(shape_.queue_tiers);
  bucket.engine_tiers.resize(shape_.prefill_engines * shape_.queue_tiers);
  const std::size_t decode = std::size_t{shape_.decode_groups} * shape_.decode_ranks;
  bucket.decode_running.resize(decode);
  bucket.decode_kv.resize(decode);
  bucket.prefill_busy.resize(std::size_t{shape_.prefill_engines} * shape_.prefill_ranks);
  return bucket;
}

void Recorder::Bucket::add(const Bucket& other) {
  samples += other.samples;
  arrivals += other.arrivals;
  finished += other.finished;
  failed += other.failed;
  retried += other.retried;
  prompt_tokens += other.prompt_tokens;
  hit_tokens += other.hit_tokens;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    tiers[t].queue.add(other.tiers[t].queue);
    tiers[t].ttft.add(other.tiers[t].ttft);
    tiers[t].tpot.add(other.tiers[t].tpot);
  }
  add_all(queued, other.queued);
  add_all(engine_tiers, other.engine_tiers);
  add_all(decode_running, other.decode_running);
  add_all(decode_kv, other.decode_kv);
  add_all(prefill_busy, other.prefill_busy);
  prefill.add(other.prefill);
  decode.add(other.decode);
}

/// So that `at` has a bucket: pairs up until it has.
void Recorder::make_room(Nanos at) {
  const auto most = static_cast<std::int64_t>(options_.buckets_max);
  while ((at - origin_).value >= width_.value * most) {
    for (std::size_t i = 0; i < buckets_.size(); i += 2) {
      if (i > 0) buckets_[i / 2] = std::move(buckets_[i]);
      if (i + 1 < buckets_.size()) buckets_[i / 2].add(buckets_[i + 1]);
    }
    buckets_.resize((buckets_.size() + 1) / 2, empty());
    width_ = width_ + width_;
  }
  const auto index = static_cast<std::size_t>(std::max<std::int64_t>((at - origin_).value, 0) / width_.value);
  while (buckets_.size() <= index) buckets_.push_back(empty());
}

Recorder::Bucket& Recorder::bucket(Nanos at) {
  begin(at);
  make_room(at);
  return buckets_[static_cast<std::size_t>(std::max<std::int64_t>((at - origin_).value, 0) / width_.value)];
}

template <class Add>
void Recorder::spread(Nanos from, Nanos span, const Add& add) {
  begin(from);
  make_room(from + span);
  const double whole = static_cast<double>(std::max<std::int64_t>(span.value, 1));
  std::int64_t at = std::max<std::int64_t>((from - origin_).value, 0);
  const std::int64_t end = at + std::max<std::int64_t>(span.value, 1);
  while (at < end) {
    const std::int64_t index = at / width_.value;
    const std::int64_t next = std::min((index + 1) * width_.value, end);
    add(buckets_[static_cast<std::size_t>(
            std::min<std::int64_t>(index, static_cast<std::int64_t>(buckets_.size()) - 1))],
        static_cast<double>(next - at) / whole);
    at = next;
  }
}

void Recorder::sample(Nanos until, const RecorderSample& state) {
  make_room(until);
  while (next_sample_ <= until) {
    Bucket& at = bucket(next_sample_);
    at.samples += 1;
    for (std::size_t t = 0; t < at.queued.size() && t < state.queued.size(); ++t)
      at.queued[t] += state.queued[t];
    for (std::size_t e = 0; e < shape_.prefill_engines && e < state.engine_tiers.size(); ++e) {
      for (std::size_t t = 0; t < shape_.queue_tiers && t < state.engine_tiers[e].size(); ++t)
        at.engine_tiers[e * shape_.queue_tiers + t] += state.engine_tiers[e][t] ? 1 : 0;
    }
    add_all(at.decode_running, state.decode_running);
    add_all(at.decode_kv, state.decode_kv);
    next_sample_ = next_sample_ + Nanos{width_.value / 2};
  }
}

Recorder::Request& Recorder::request(std::uint32_t slot) {
  if (slot >= requests_.size()) requests_.resize(slot + 1);
  return requests_[slot];
}

void Recorder::queued(std::uint32_t slot, std::uint64_t id, std::int64_t prompt_tokens, Nanos submitted,
                      Nanos now) {
  Request& one = request(slot);
  if (one.live && one.id == id) {  // it came back: preempted, or where it was is lost
    bucket(now).retried += 1;
    close_phase(one, now);
  } else {
    const auto& bounds = shape_.report_bounds_tokens;
    one = Request{};
    one.id = id;
    one.live = true;
    one.prompt = prompt_tokens;
    one.arrived = submitted;
    one.tier = static_cast<std::size_t>(std::ranges::upper_bound(bounds, prompt_tokens) - bounds.begin());
  }
  one.phase = Span::Kind::kQueued;
  one.since = now;
}

void Recorder::leased(std::uint32_t slot, std::uint32_t engine, std::uint32_t rank, std::int64_t tokens,
                      std::int64_t hit, Nanos now) {
  Request& one = request(slot);
  Bucket& at = bucket(now);
  at.tiers[one.tier].queue.add(now - one.since);
  if (!std::exchange(one.counted, true)) {
    at.prompt_tokens += static_cast<double>(tokens);
    at.hit_tokens += static_cast<double>(hit);
  }
  close_phase(one, now);
  one.phase = Span::Kind::kPrefill;
  one.since = now;
  one.engine = engine;
  one.rank = rank;
}

void Recorder::first_token(std::uint32_t slot, Nanos now) {
  Request& one = request(slot);
  one.first_token = now;
  bucket(now).tiers[one.tier].ttft.add(now - one.arrived);
}

void Recorder::decoding(std::uint32_t slot, std::uint32_t engine, std::uint32_t rank, Nanos now) {
  Request& one = request(slot);
  close_phase(one, now);
  one.phase = Span::Kind::kDecode;
  one.since = now;
  one.engine = engine;
  one.rank = rank;
}

void Recorder::ended(std::uint32_t slot, std::int64_t output, Nanos now) {
  Request& one = request(slot);
  Bucket& at = bucket(now);
  if (output > 0) at.finished += 1;
  if (output > 1) at.tiers[one.tier].tpot.add(Nanos{(now - one.first_token).value / (output - 1)});
  close_phase(one, now);
  one.live = false;
}

void Recorder::prefill_step(std::uint32_t engine, std::uint64_t step, Nanos begins, Nanos span,
                            const StepTimes& times, std::span<const Nanos> worked, std::int64_t requests) {
  spread(begins, span, [&](Bucket& at, double part) {
    at.prefill.add(times, part);
    for (std::size_t r = 0; r < worked.size(); ++r)
      at.prefill_busy[engine * shape_.prefill_ranks + r] += part * static_cast<double>(worked[r].value);
  });
  keep({Span::Kind::kPrefillStep, begins, begins + span, engine, 0, step, 1, requests, 0});
}

void Recorder::decode_steps(std::uint32_t group, std::uint64_t first, std::uint64_t steps, Nanos begins,
                            Nanos span, const StepTimes& times, std::int64_t requests) {
  spread(begins, span, [&](Bucket& at, double part) { at.decode.add(times, part); });
  keep({Span::Kind::kDecodeSteps, begins, begins + span, group, 0, first, steps, requests, 0});
}

void Recorder::fault_began(const FaultMark& fault) {
  begin(fault.from);
  if (faults_.size() < options_.faults_max) {
    faults_.push_back(fault);
  } else {
    ++faults_left_out_;
  }
}

void Recorder::fault_over(const FaultMark& fault) {
  for (FaultMark& one : faults_) {
    const bool same = one.kind == fault.kind && one.role == fault.role && one.target == fault.target;
    if (!same || one.until.value >= 0) continue;
    one.until = fault.until;
    return;
  }
}

void Recorder::experts(ExpertPicture prefill, ExpertPicture decode) {
  prefill_experts_ = std::move(prefill);
  decode_experts_ = std::move(decode);
}

bool Recorder::in_slice(Nanos begins, Nanos ends) const {
  const Nanos from = origin_ + options_.timeline_from;
  return options_.timeline_span.value > 0 && ends >= from && begins <= from + options_.timeline_span;
}

void Recorder::keep(const Span& span) {
  if (!in_slice(span.begin, span.end)) return;
  if (spans_.size() < options_.spans_max) {
    spans_.push_back(span);
  } else {
    ++spans_left_out_;
  }
}

void Recorder::close_phase(const Request& one, Nanos now) {
  if (one.live) keep({one.phase, one.since, now, one.engine, one.rank, one.id, 0, 1, one.prompt});
}

void Recorder::write_bucket(const Bucket& from, double width_ns, Recording& out) const {
  const double samples = std::max(from.samples, 1.0);
  out.arrivals.push_back(from.arrivals);
  out.finished.push_back(from.finished);
  out.failed.push_back(from.failed);
  out.retried.push_back(from.retried);
  out.prompt_tokens.push_back(from.prompt_tokens);
  out.hit_tokens.push_back(from.hit_tokens);
  out.prefill_times.push_back(from.prefill);
  out.decode_times.push_back(from.decode);
  for (std::size_t t = 0; t < from.queued.size(); ++t) out.queued[t].push_back(from.queued[t] / samples);
  for (std::size_t t = 0; t < from.tiers.size(); ++t) {
    out.tiers[t].queue.push_back(percentiles(from.tiers[t].queue));
    out.tiers[t].ttft.push_back(percentiles(from.tiers[t].ttft));
    out.tiers[t].tpot.push_back(percentiles(from.tiers[t].tpot));
  }
  for (std::size_t i = 0; i < from.engine_tiers.size(); ++i)
    out.engine_tiers[i / shape_.queue_tiers][i % shape_.queue_tiers].push_back(from.engine_tiers[i] /
                                                                               samples);
  for (std::size_t r = 0; r < from.decode_kv.size(); ++r) {
    out.decode_running[r].push_back(from.decode_running[r] / samples);
    out.decode_kv[r].push_back(from.decode_kv[r] / samples);
  }
  for (std::size_t r = 0; r < from.prefill_busy.size(); ++r)
    out.prefill_busy[r].push_back(std::min(from.prefill_busy[r] / width_ns, 1.0));
}

Recording Recorder::take() {
  Recording out;
  out.origin = origin_;
  out.width = width_;
  out.buckets = buckets_.size();
  out.prefill_ranks = shape_.prefill_ranks;
  out.decode_ranks = shape_.decode_ranks;
  out.tiers.resize(shape_.report_bounds_tokens.size() + 1);
  out.queued.resize(shape_.queue_tiers);
  out.engine_tiers.resize(shape_.prefill_engines, std::vector<Series>(shape_.queue_tiers));
  out.decode_running.resize(std::size_t{shape_.decode_groups} * shape_.decode_ranks);
  out.decode_kv.resize(out.decode_running.size());
  out.prefill_busy.resize(std::size_t{shape_.prefill_engines} * shape_.prefill_ranks);
  for (const Bucket& bucket : buckets_) write_bucket(bucket, static_cast<double>(width_.value), out);
  out.spans = std::move(spans_);
  out.spans_left_out = spans_left_out_;
  out.faults = std::move(faults_);
  out.faults_left_out = faults_left_out_;
  out.prefill_experts = std::move(prefill_experts_);
  out.decode_experts = std::move(decode_experts_);
  start(std::move(shape_));
  return out;
}

}  // namespace trimtab::sim
