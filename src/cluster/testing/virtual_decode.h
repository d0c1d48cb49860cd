#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cluster/actions.h"
#include "cluster/testing/virtual_group.h"
#include "model/cluster_config.h"

namespace trimtab::cluster::testing {

/// A decode group: reservations, continuous batching, a token of each running request a step, and preemption
/// when blocks run out.
class VirtualDecode final : public VirtualGroup {
 public:
  VirtualDecode(EngineId engine, const model::ClusterConfig& config, double refusals, Surroundings& world)
      : VirtualGroup(model::Role::kDecode, engine, config.decode.ranks, config.decode.kv_blocks, world),
        refusals_(refusals),
        states_(config.decode.ranks) {}

  void reserve(const Reserve& action) {
    Rank& rank = states_[action.rank.rank];
    if (rank.seats.contains(action.id)) world_.violation("Reserve of a request that has a place there");
    const std::int64_t blocks = blocks_of(action.tokens.value);
    const bool room = blocks <= free(rank) && world_.prng().uniform() >= refusals_;
    if (room) {
      rank.seats.emplace(action.id, Seat{blocks, 0, 0, 0, false, false});
      world_.granted(action.id, generation());
    }
    const Place from = place(action.rank.rank);
    world_.tell(from, Reserved{action.rank, action.id, room, free(rank)});
  }
  void written(std::uint32_t r, RequestId id) {
    Rank& rank = states_[r];
    const auto seat = rank.seats.find(id);
    if (seat == rank.seats.end()) {
      world_.violation("KV was written into decode blocks that the request does not have");
    } else {
      seat->second.written = true;
    }
  }
  void start(const StartDecode& action, TokenCount tokens) {
    Rank& rank = states_[action.rank.rank];
    const auto found = rank.seats.find(action.id);
    if (found == rank.seats.end() || !found->second.written) {
      world_.violation("StartDecode without KV in place");
      return;
    }
    Seat& seat = found->second;
    if (seat.running) world_.violation("StartDecode twice");
    seat.running = true;
    seat.tokens = tokens.value;
    seat.left = action.output_left.value;
    seat.blocks = std::max(seat.blocks, blocks_of(tokens.value));
    if (free(rank) < 0) world_.violation("a decode rank holds more blocks than it has");
  }
  void abort(std::uint32_t r, RequestId id) {
    states_[r].seats.erase(id);
    world_.tell(place(r), Released{place(r), id, free(states_[r])});
  }
  std::size_t held() const {
    std::size_t sum = 0;
    for (const Rank& rank : states_) sum += rank.seats.size();
    return sum;
  }
  std::int64_t preemptions() const { return preemptions_; }
  std::int64_t running_most() const { return running_most_; }

 private:
  struct Seat {
    std::int64_t blocks = 0, tokens = 0, left = 0, generated = 0;
    bool running = false, written = false;
  };
  struct Rank {
    std::map<RequestId, Seat> seats;
  };
  static std::int64_t blocks_of(std::int64_t tokens) {
    return (tokens + model::kBlockTokens - 1) / model::kBlockTokens;
  }
  std::int64_t free(const Rank& rank) const {
    std::int64_t used = 0;
    for (const auto& [id, seat] : rank.seats) used += seat.blocks;
    return blocks_ - used;
  }
  void clear() override {
    for (Rank& rank : states_) rank.seats.clear();
  }
  Nanos begin_step() override {
    Nanos span;
    for (const Rank& rank : states_) {
      std::int64_t kv = 0, running = 0;
      for (const auto& [id, seat] : rank.seats) {
        kv += seat.running ? seat.tokens : 0;
        running += seat.running ? 1 : 0;
      }
      if (running > 0) span = std::max(span, Nanos{3'000'000 + kv * 200 + running * 50'000});
    }
    return span;
  }
  void end_step(bool reported) override {
    if (!reported) return;
    ++step_;
    for (std::uint32_t r = 0; r < states_.size(); ++r) step_rank(r);
  }
  void step_rank(std::uint32_t r) {
    Rank& rank = states_[r];
    DecodeStepped stepped;
    stepped.from = place(r).rank_id();
    stepped.step = step_;
    std::map<RequestId, std::int64_t> positions;
    std::vector<std::pair<RequestId, std::int64_t>> preempted;
    std::vector<RequestId> ended;
    for (auto& [id, seat] : rank.seats) {
      if (!seat.running) continue;
      // The token at `tokens - 1` has no KV yet: this step writes it and draws the next.
      if (blocks_of(seat.tokens) > seat.blocks) {
        if (free(rank) == 0) {
          preempted.emplace_back(id, seat.generated);
          continue;
        }
        ++seat.blocks;
      }
      TokenReport token{id, model::FinishReason::kNone};
      positions[id] = seat.tokens;
      ++seat.tokens;
      ++seat.generated;
      --seat.left;
      const std::int64_t answered = seat.tokens - world_.prompt(id).value;
      if (answered >= world_.stops_after(id)) {
        token.finish = model::FinishReason::kStop;
      } else if (seat.left == 0) {
        token.finish = model::FinishReason::kLength;
      }
      if (token.finish != model::FinishReason::kNone) ended.push_back(id);
      stepped.tokens.push_back(token);
    }
    if (stepped.tokens.empty() && preempted.empty()) return;
    for (const RequestId id : ended) rank.seats.erase(id);
    for (const auto& [id, generated] : preempted) rank.seats.erase(id);
    for (const auto& [id, seat] : rank.seats) {
      if (!seat.running) continue;
      stepped.running += 1;
      stepped.kv += TokenCount{seat.tokens};
    }
    running_most_ = std::max(running_most_, stepped.running);
    stepped.blocks_free = free(rank);
    world_.tell(place(r), stepped, positions);
    for (const auto& [id, generated] : preempted) {
      ++preemptions_;
      world_.tell(place(r), Preempted{stepped.from, id, TokenCount{generated}, "no block left"});
    }
  }

  double refusals_;
  std::vector<Rank> states_;
  std::uint64_t step_ = 0;
  std::int64_t preemptions_ = 0, running_most_ = 0;
};

/// One encoder: images one after the other, some of them in vain.
class VirtualEncoder {
 public:
  VirtualEncoder(EncoderId id, double failures, Nanos per_patch, Surroundings& world)
      : id_(id), failures_(failures), per_patch_(per_patch), world_(world) {}

  void join() {
    alive_ = true;
    world_.tell(Place::of(id_), Joined{Place::of(id_), 0});
  }
  void lose() {
    if (!alive_) return;
    alive_ = false;
    ++generation_;
    jobs_.clear();
    busy_ = false;
    world_.link(Place::of(id_)).cut();
    world_.tell(Place::of(id_), Lost{Place::of(id_)});
    world_.loop().after(Nanos{5'000'000 + static_cast<std::int64_t>(world_.prng().below(50'000'000))},
                        [this] { join(); });
  }
  void encode(RequestId id, std::uint32_t image, std::int64_t patches) {
    jobs_.push_back({id, image, patches});
    if (!busy_) next();
  }
  void abort(RequestId id) {
    // The image under way goes on to its end, as a real encoder's does; its result is not wanted any more.
    std::erase_if(jobs_, [id](const Job& job) { return job.id == id; });
    world_.tell(Place::of(id_), Released{Place::of(id_), id, 0});
  }
  std::size_t held() const { return jobs_.size() + (busy_ ? 1 : 0); }

 private:
  struct Job {
    RequestId id;
    std::uint32_t image = 0;
    std::int64_t patches = 0;
  };
  void next() {
    if (jobs_.empty()) return;
    busy_ = true;
    const Job job = jobs_.front();
    jobs_.pop_front();
    world_.loop().after(per_patch_ * job.patches, [this, job, generation = generation_] {
      if (generation != generation_) return;
      busy_ = false;
      if (world_.prng().uniform() < failures_) {
        world_.tell(Place::of(id_),
                    EncodeFailed{id_, job.id, job.image, base::Code::kInternal, "encoder fault"});
      } else {
        world_.tell(Place::of(id_), Encoded{id_, job.id, job.image, per_patch_ * job.patches});
      }
      next();
    });
  }

  EncoderId id_;
  double failures_;
  Nanos per_patch_;
  Surroundings& world_;
  bool alive_ = false, busy_ = false;
  std::uint64_t generation_ = 0;
  std::deque<Job> jobs_;
};

}  // namespace trimtab::cluster::testing
