#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/hash.h"
#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "cluster/testing/virtual_decode.h"
#include "cluster/testing/virtual_prefill.h"

namespace trimtab::cluster::testing {

/// Faults of the model engines; all chances are per message or image.
struct Faults {
  double reserve_refusals = 0.0;
  double encode_failures = 0.0;
  double hand_over_failures = 0.0;
  /// The pool has the full blocks of answers too, as decode ranks of the reference engine write them.
  bool answers_in_pool = false;
  bool no_pool = false;
  Nanos encode_per_patch{5'000};
};

/// What a client asks.
struct Ask {
  std::int64_t prompt = 0, output_limit = 1, stops_after = INT64_MAX, shared = 0;
  std::vector<model::ImageSpan> images;
  Nanos timeout = base::kForever;
};

/// How a request ended, as its client saw it.
struct Outcome {
  std::int64_t tokens = 0;
  bool accepted = false, finished = false, failed = false, cancelled = false;
  model::FinishReason reason = model::FinishReason::kNone;
  base::Code code = base::Code::kInternal;
  std::string message;
  std::optional<Nanos> retry_after;
  Nanos submitted, first_token, ended;
  bool done() const { return finished || failed || cancelled; }
};

/// The cluster machine with a host, clients and model engines around it, all in virtual time.
class World final : public Surroundings {
 public:
  World(const model::ClusterConfig& config, const model::Profile& profile, std::unique_ptr<TierQueue> queue,
        std::uint64_t seed, Faults faults = {})
      : config_(config), profile_(profile), faults_(faults), prng_(seed), agents_(config, profile) {
    cluster_ = Cluster::make(config_, profile_, std::move(queue)).value();
    for (std::uint32_t e = 0; e < config_.prefill.engines; ++e) {
      prefill_.push_back(std::make_unique<VirtualPrefill>(EngineId{e}, config_, profile_, *this));
    }
    for (std::uint32_t g = 0; g < config_.decode.groups; ++g) {
      decode_.push_back(
          std::make_unique<VirtualDecode>(EngineId{g}, config_, faults.reserve_refusals, *this));
    }
    for (std::uint32_t m = 0; m < config_.vision.machines; ++m) {
      for (std::uint32_t e = 0; e < config_.vision.encoders; ++e) {
        const EncoderId id{model::MachineId{m}, e};
        encoders_[id] =
            std::make_unique<VirtualEncoder>(id, faults.encode_failures, faults.encode_per_patch, *this);
      }
    }
  }

  void start() {
    for (auto& engine : prefill_) engine->join_all();
    for (auto& group : decode_) group->join_all();
    for (auto& [id, encoder] : encoders_) encoder->join();
    run_until(Nanos{10'000'000});
  }
  RequestId submit(const Ask& ask) {
    const RequestId id{next_id_++};
    asks_[id] = ask;
    outcomes_[id].submitted = loop_.now();
    live_.insert(id);
    step(Submitted{id, TokenCount{ask.prompt}, TokenCount{ask.output_limit}, ask.images, ask.timeout});
    return id;
  }
  void cancel(RequestId id) {
    if (live_.erase(id) == 0) return;
    outcomes_[id].cancelled = true;
    outcomes_[id].ended = loop_.now();
    step(Cancelled{id});
  }
  void step(const Event& event, const std::map<RequestId, std::int64_t>& positions = {}) {
    if (stepping_) {  // as the host does it: one step after the other
      waiting_.emplace_back(event, positions);
      return;
    }
    stepping_ = true;
    waiting_.emplace_back(event, positions);
    while (!waiting_.empty()) {
      const auto next = std::move(waiting_.front());
      waiting_.pop_front();
      one_step(next.first, next.second);
    }
    stepping_ = false;
  }
  void run_until(Nanos instant) {
    bool reached = false;
    loop_.at(instant, [&reached] { reached = true; });
    while (!reached && loop_.run_one()) {
    }
  }
  /// To the end of everything; false when it does not come within `most`.
  bool run_out(Nanos most) {
    const Nanos end = loop_.now() + most;
    while (loop_.now() < end) {
      if (!loop_.run_one()) return true;
    }
    return false;
  }

  Cluster& cluster() { return *cluster_; }
  const PullAgents& agents() const { return agents_; }
  VirtualPrefill& prefill(std::size_t e) { return *prefill_[e]; }
  VirtualDecode& decode(std::size_t g) { return *decode_[g]; }
  VirtualEncoder& encoder(EncoderId id) { return *encoders_.at(id); }
  const Outcome& outcome(RequestId id) const { return outcomes_.at(id); }
  const std::map<RequestId, Outcome>& outcomes() const { return outcomes_; }
  const Ask& ask(RequestId id) const { return asks_.at(id); }
  const std::set<RequestId>& live() const { return live_; }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t steps() const { return steps_; }
  const Violations& violations() const { return violations_; }
  /// How many prefills were started at this rank so far.
  int starts(Place place) const {
    const auto found = starts_.find(place);
    return found == starts_.end() ? 0 : found->second;
  }
  const std::vector<Record>& records() const { return records_; }
  void keep_records(bool keep) { keep_records_ = keep; }
  std::int64_t embeddings_at_host() const { return static_cast<std::int64_t>(embeddings_.size()); }
  /// What the model engines hold, all together.
  std::size_t held() const {
    std::size_t sum = 0;
    for (const auto& engine : prefill_) sum += engine->held();
    for (const auto& group : decode_) sum += group->held();
    for (const auto& [id, encoder] : encoders_) sum += encoder->held();
    return sum;
  }

  Loop& loop() override { return loop_; }
  base::Prng& prng() override { return prng_; }
  Link& link(Place place) override {
    auto& link = links_[place];
    if (!link) link = std::make_unique<Link>(loop_, prng_);
    return *link;
  }
  void tell(Place from, Event event, std::map<RequestId, std::int64_t> positions) override {
    link(from).to_host(
        [this, event = std::move(event), positions = std::move(positions)] { step(event, positions); });
  }
  void violation(std::string what) override { violations_.push_back(std::move(what)); }
  std::int64_t stops_after(RequestId id) override { return asks_.at(id).stops_after; }
  TokenCount prompt(RequestId id) override { return TokenCount{asks_.at(id).prompt}; }
  double hand_over_failures() override { return faults_.hand_over_failures; }
  void granted(RequestId id, std::uint64_t generation) override { granted_[id] = generation; }
  void hand_over(RankId decode, std::uint64_t generation, RequestId id) override {
    VirtualDecode& group = *decode_[decode.engine.value];
    // The memory of a formation that is gone harms nobody.
    if (group.generation() == generation && group.whole()) group.written(decode.rank, id);
  }

 private:
  void one_step(const Event& event, const std::map<RequestId, std::int64_t>& positions);
  using Positions = std::map<RequestId, std::int64_t>;
  void perform(const Match& match, const Positions& positions);
  void perform(const Accept& accept, const Positions& positions);
  void perform(const Grant&, const Positions&) {}
  void perform(const Revoke&, const Positions&) {}
  void perform(const StartPrefill& start, const Positions& positions);
  void perform(const StartEncode& encode, const Positions& positions);
  void perform(const SendEmbeddings& rows, const Positions& positions);
  void perform(const DropEmbeddings& drop, const Positions& positions);
  void perform(const Reserve& reserve, const Positions& positions);
  void perform(const SendTarget& target, const Positions& positions);
  void perform(const StartDecode& decode, const Positions& positions);
  void perform(const Abort& abort, const Positions& positions);
  void perform(const Deliver& token, const Positions& positions);
  void perform(const Finish& finish, const Positions& positions);
  void perform(const Fail& fail, const Positions& positions);
  void perform(const Log& entry, const Positions& positions);
  void perform(const SetTimer& timer, const Positions& positions);
  std::int64_t hit_of(RequestId id, std::int64_t tokens) const {
    std::int64_t hit = asks_.at(id).shared;
    for (const auto& engine : prefill_) hit = std::max(hit, engine->stored(id));
    if (faults_.no_pool) return 0;
    if (faults_.answers_in_pool && outcomes_.at(id).tokens > 1) hit = tokens;
    return std::min(hit, tokens - 1) / model::kBlockTokens * model::kBlockTokens;
  }
  /// Over the rank's link; read between the group's steps.
  template <class Group, class F>
  void to(Group& group, std::uint32_t rank, F what) {
    link(group.place(rank)).to_engine([&group, what = std::move(what)] { group.deliver(what); });
  }

  model::ClusterConfig config_;
  model::Profile profile_;
  Faults faults_;
  Loop loop_;
  base::Prng prng_;
  PullAgents agents_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<VirtualPrefill>> prefill_;
  std::vector<std::unique_ptr<VirtualDecode>> decode_;
  std::map<EncoderId, std::unique_ptr<VirtualEncoder>> encoders_;
  std::map<Place, std::unique_ptr<Link>> links_;
  std::map<RequestId, Ask> asks_;
  std::map<RequestId, Outcome> outcomes_;
  std::map<RequestId, std::uint64_t> granted_;
  std::map<Place, int> starts_;
  std::set<RequestId> live_;
  std::set<std::pair<RequestId, std::uint32_t>> embeddings_;
  std::deque<std::pair<Event, std::map<RequestId, std::int64_t>>> waiting_;
  std::vector<Record> records_;
  Violations violations_;
  bool stepping_ = false, keep_records_ = false;
  std::uint64_t next_id_ = 1, hash_ = 0, steps_ = 0, timer_ = 0;
};

}  // namespace trimtab::cluster::testing

#include "cluster/testing/virtual_host.h"
