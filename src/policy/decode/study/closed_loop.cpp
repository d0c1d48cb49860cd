#include "policy/decode/study/closed_loop.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "base/check.h"
#include "base/prng.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

constexpr std::int64_t kStepNs = 33'333'333;

RankId rank_id(std::size_t rank) { return {model::EngineId{0}, static_cast<std::uint32_t>(rank)}; }

/// The recorded requests in shuffled order, again and again.
class Stream {
 public:
  Stream(std::span<const StudyRequest> trace, std::uint64_t seed)
      : requests_(trace.begin(), trace.end()), next_(requests_.size()), prng_(seed, 1) {}
  StudyRequest next() {
    if (next_ == requests_.size()) {
      prng_.shuffle(std::span(requests_));
      next_ = 0;
    }
    return requests_[next_++];
  }

 private:
  std::vector<StudyRequest> requests_;
  std::size_t next_;
  base::Prng prng_;
};

struct Live {
  RequestId id;
  std::size_t rank = 0, placer = 0;
  StudyRequest request;
  std::int64_t done = 0, stalled = 0;
  std::int64_t tokens() const { return request.prompt_tokens + done; }
};

struct Snapshot {
  std::vector<std::int64_t> kv, running;
};

class Loop {
 public:
  Loop(const StudyCase& study, std::span<const StudyRequest> trace)
      : study_(study),
        stream_(trace, study.seed),
        prng_(study.seed, 2),
        places_(study.ranks * study.batch),
        kv_(static_cast<std::size_t>(study.ranks)),
        running_(static_cast<std::size_t>(study.ranks)),
        queues_(static_cast<std::size_t>(study.placers)),
        owed_(static_cast<std::size_t>(study.placers)),
        held_(static_cast<std::size_t>(study.placers)) {
    double tokens = 0, weighed = 0;
    for (const StudyRequest& request : trace) {
      const auto output = static_cast<double>(request.output_tokens);
      tokens += output;
      weighed += output * (static_cast<double>(request.prompt_tokens) + output / 2);
    }
    mean_kv_ = weighed / tokens * static_cast<double>(study.batch);
    for (std::int64_t p = 0; p < study.placers; ++p) add_placer(p);
    for (std::int64_t i = 0; i < places_; ++i) owe();
  }

  StudyResult run() {
    while (placed_ < study_.fills * places_) {
      begin_step();
      for (std::size_t p = 0; p < placers_.size(); ++p) place(p);
      migrate();
      measure();
      stream_tokens();
      ++step_;
    }
    return result();
  }

 private:
  Nanos now() const { return Nanos{step_ * kStepNs}; }
  double speed(std::size_t rank) const { return study_.slow_half && rank % 2 == 1 ? 0.7 : 1.0; }

  void add_placer(std::int64_t number) {
    DecodeConfig config = study_.config;
    config.placers = study_.config.placers > 1 ? study_.placers : 1;
    config.placer = config.placers > 1 ? number : 0;
    auto made = make_decode_policy(config);
    TRIMTAB_CHECK(made.has_value(), to_string(made.error()));
    const double cap = study_.kv_cap_permille == 0
                           ? static_cast<double>(1 << 29)
                           : mean_kv_ * static_cast<double>(study_.kv_cap_permille) / 1000;
    for (std::size_t rank = 0; rank < kv_.size(); ++rank) {
      const std::int64_t permille = study_.slow_half && rank % 2 == 1 ? 700 : 1000;
      (*made)->add_rank(rank_id(rank),
                        {TokenCount{static_cast<std::int64_t>(cap)}, 4 * study_.batch, permille});
    }
    placers_.push_back(std::move(*made));
  }

  /// A place is free: some gateway has the next request of the endless queue.
  void owe() { owed_[prng_.below(placers_.size())] += 1; }

  void begin_step() {
    for (std::size_t i = 0; i < live_.size();) {
      Live& live = live_[i];
      if (live.done < live.request.output_tokens) {
        ++i;
        continue;
      }
      if (study_.sees_streams) placers_[live.placer]->ended(live.id, now());
      kv_[live.rank] -= live.tokens();
      running_[live.rank] -= 1;
      live = live_.back();
      live_.pop_back();
      owe();
    }
    if (study_.report_every > 0 && step_ % study_.report_every == 0) report();
  }

  void report() {
    if (study_.report_age == 0) {
      std::vector<DecodeReport> reports(kv_.size());
      for (std::size_t rank = 0; rank < kv_.size(); ++rank) {
        reports[rank].rank = rank_id(rank);
        reports[rank].listed = true;
        reports[rank].as_of = now();
      }
      for (const Live& live : live_)
        reports[live.rank].requests.push_back({live.id, TokenCount{live.tokens()}});
      for (const auto& placer : placers_)
        for (const DecodeReport& report : reports) placer->report(report);
      return;
    }
    if (static_cast<std::int64_t>(snapshots_.size()) < study_.report_age) return;
    const Snapshot& seen = snapshots_[snapshots_.size() - static_cast<std::size_t>(study_.report_age)];
    for (std::size_t rank = 0; rank < kv_.size(); ++rank) {
      DecodeReport report;
      report.rank = rank_id(rank);
      report.running = seen.running[rank];
      report.kv = TokenCount{seen.kv[rank]};
      report.as_of = Nanos{(step_ - study_.report_age) * kStepNs + kStepNs / 2};
      for (const auto& placer : placers_) placer->report(report);
    }
  }

  void place(std::size_t p) {
    std::deque<DecodeRequest>& queue = queues_[p];
    const std::size_t wanted =
        static_cast<std::size_t>(std::max<std::int64_t>(study_.config.window, owed_[p]));
    while (queue.size() < wanted) {
      const StudyRequest next = stream_.next();
      waiting_[next_id_] = next;
      queue.push_back({RequestId{next_id_}, TokenCount{next.prompt_tokens}, TokenCount{0}, now()});
      if (++next_id_ == waiting_.size()) waiting_.resize(2 * waiting_.size());
    }
    while (owed_[p] > 0) {
      std::int64_t admissible = 0;
      for (std::int64_t i = 0; i < owed_[p]; ++i)
        admissible += queue[static_cast<std::size_t>(i)].tokens.value;
      // The hold of a head counts from the moment it is at the head and a place is free.
      if (!held_[p]) queue.front().waiting_since = now();
      std::vector<DecodeRequest> waiting(queue.begin(), queue.end());
      for (DecodeRequest& request : waiting) {
        request.queued_tokens = TokenCount{std::max<std::int64_t>(0, admissible - request.tokens.value)};
        request.queued = owed_[p] - 1;
      }
      const DecodePick pick = placers_[p]->decide_next(waiting, now());
      if (!pick.decision.rank) {
        held_[p] = true;
        hold_max_ = std::max(hold_max_, (now() - queue.front().waiting_since).value / kStepNs + 1);
        return;
      }
      if (pick.index == 0) held_[p] = false;
      admit(p, waiting[pick.index], *pick.decision.rank);
      for (std::size_t i = 0; i < pick.index; ++i)
        overtaken_max_ = std::max(overtaken_max_, ++queue[i].overtaken);
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(pick.index));
      owed_[p] -= 1;
    }
  }

  void admit(std::size_t p, const DecodeRequest& request, RankId rank) {
    const StudyRequest& lengths = waiting_[request.id.value];
    placers_[p]->admitted(request.id, rank, request.tokens, now());
    // Without the streams, the placer still knows that its hand-over was confirmed.
    if (!study_.sees_streams) placers_[p]->grew(request.id, 0, now());
    live_.push_back({request.id, rank.rank, p, lengths});
    kv_[rank.rank] += lengths.prompt_tokens;
    running_[rank.rank] += 1;
    ++placed_;
  }

  void migrate() {
    if (study_.config.moves_permille == 0) return;
    const std::vector<DecodeMove> moves = placers_.front()->migrate(now());
    for (const DecodeMove& move : moves) {
      const auto found =
          std::find_if(live_.begin(), live_.end(), [&](const Live& l) { return l.id == move.id; });
      if (found == live_.end()) continue;
      TRIMTAB_CHECK(placers_.front()->moved(move.id, move.to, now()), "a planned move of nobody");
      kv_[found->rank] -= found->tokens();
      running_[found->rank] -= 1;
      found->rank = move.to.rank;
      kv_[found->rank] += found->tokens();
      running_[found->rank] += 1;
      found->stalled = study_.move_lost_steps;
      ++moves_;
    }
  }

  void measure() {
    if (placed_ < study_.fills_dropped * places_) return;
    if (counted_ == 0) {
      placed_before_ = placed_;
      moves_before_ = moves_;
    }
    ++counted_;
    double kv_max = 0, running_max = 0, kv_sum = 0, speeds = 0;
    std::int64_t padded_max = 0;
    for (std::size_t rank = 0; rank < kv_.size(); ++rank) {
      const std::int64_t padded =
          (running_[rank] + study_.graph_step - 1) / study_.graph_step * study_.graph_step;
      padded_max = std::max(padded_max, padded);
      kv_max = std::max(kv_max, static_cast<double>(kv_[rank]) / speed(rank));
      running_max = std::max(running_max, static_cast<double>(padded) / speed(rank));
      kv_sum += static_cast<double>(kv_[rank]);
      speeds += speed(rank);
    }
    const auto live = static_cast<double>(live_.size());
    const double full = static_cast<double>(places_) / speeds;  // running requests per unit of speed
    kv_max_sum_ += kv_max;
    running_max_sum_ += running_max / full;
    moe_sum_ +=
        study_.graph_step > 1 ? static_cast<double>(padded_max) / full : live / static_cast<double>(places_);
    request_kv_sum_ += kv_sum / live;
    live_sum_ += live / static_cast<double>(places_);
    kv_peak_sum_ += kv_max * speeds / kv_sum;
    running_peak_sum_ += running_max * speeds / live;
    speeds_ = speeds;
  }

  void stream_tokens() {
    const Nanos at{step_ * kStepNs + kStepNs / 2};
    for (Live& live : live_) {
      if (live.stalled > 0) {
        --live.stalled;
        continue;
      }
      const std::int64_t n = std::min(study_.tokens_per_step, live.request.output_tokens - live.done);
      live.done += n;
      kv_[live.rank] += n;
      if (counted_ > 0) progressed_ += 1;
      if (study_.sees_streams) placers_[live.placer]->grew(live.id, n, at);
    }
    if (study_.report_age == 0) return;
    snapshots_.push_back({kv_, running_});
    if (static_cast<std::int64_t>(snapshots_.size()) > study_.report_age) snapshots_.pop_front();
  }

  StudyResult result() const {
    const auto steps = static_cast<double>(counted_);
    // The ideal step at full occupancy takes 1: attention of a full rank that has its even share of the KV.
    const double even_kv = request_kv_sum_ / steps * static_cast<double>(places_) / speeds_;
    const double time = 0.2 * steps + 0.4 * kv_max_sum_ / even_kv + 0.2 * running_max_sum_ + 0.2 * moe_sum_;
    StudyResult result;
    result.share = static_cast<double>(progressed_) / static_cast<double>(places_) / time;
    result.live = live_sum_ / steps;
    result.kv_peak = kv_peak_sum_ / steps;
    result.running_peak = running_peak_sum_ / steps;
    result.moves_per_request =
        static_cast<double>(moves_ - moves_before_) / static_cast<double>(placed_ - placed_before_);
    result.overtaken_max = overtaken_max_;
    result.hold_steps_max = hold_max_;
    result.placed = placed_ - placed_before_;
    result.steps = counted_;
    return result;
  }

  const StudyCase& study_;
  Stream stream_;
  base::Prng prng_;
  std::int64_t places_;
  double mean_kv_ = 0;
  std::vector<std::unique_ptr<DecodePolicy>> placers_;
  std::vector<std::int64_t> kv_, running_;  // the truth, by rank
  std::vector<Live> live_;
  std::vector<std::deque<DecodeRequest>> queues_;                        // by placer
  std::vector<std::int64_t> owed_;                                       // free places, by placer
  std::vector<StudyRequest> waiting_ = std::vector<StudyRequest>(1024);  // by request id
  std::deque<Snapshot> snapshots_;
  std::uint64_t next_id_ = 1;
  std::vector<bool> held_;  // by placer: its head was refused a place
  std::int64_t step_ = 0, placed_ = 0, moves_ = 0, counted_ = 0, progressed_ = 0;
  std::int64_t placed_before_ = 0, moves_before_ = 0, overtaken_max_ = 0, hold_max_ = 0;
  double kv_max_sum_ = 0, running_max_sum_ = 0, moe_sum_ = 0, request_kv_sum_ = 0, live_sum_ = 0;
  double kv_peak_sum_ = 0, running_peak_sum_ = 0, speeds_ = 1;
};

}  // namespace

StudyResult run_study(const StudyCase& study, std::span<const StudyRequest> trace) {
  TRIMTAB_CHECK(!trace.empty() && study.ranks > 0 && study.batch > 0 && study.placers > 0, "an empty study");
  return Loop(study, trace).run();
}

std::vector<StudyRequest> synthetic_conversation(std::size_t requests, std::uint64_t seed) {
  // Every twentieth part of the recorded lengths, straight lines between.
  constexpr std::array<double, 22> kPrompt = {891,    901,    964,    1'261,  1'662,  2'306,  3'263,  4'250,
                                              4'993,  5'870,  6'909,  8'187,  9'570,  11'239, 13'196, 15'368,
                                              17'869, 21'467, 27'367, 39'552, 85'401, 126'195};
  constexpr std::array<double, 22> kOutput = {1,   10,  24,  46,  100, 156, 213, 256, 291, 322,   350,
                                              375, 399, 423, 447, 472, 504, 543, 597, 698, 1'120, 2'000};
  base::Prng prng(seed);
  const auto draw = [&](const std::array<double, 22>& quantiles) {
    const double u = prng.uniform();
    const double at = u < 0.95 ? u * 20 : u < 0.99 ? 19 + (u - 0.95) / 0.04 : 20 + (u - 0.99) / 0.01;
    const auto i = std::min<std::size_t>(20, static_cast<std::size_t>(at));
    const double part = at - static_cast<double>(i);
    return static_cast<std::int64_t>(quantiles[i] + part * (quantiles[i + 1] - quantiles[i]));
  };
  std::vector<StudyRequest> made(requests);
  for (StudyRequest& request : made) request = {draw(kPrompt), draw(kOutput)};
  return made;
}

}  // namespace trimtab::policy
