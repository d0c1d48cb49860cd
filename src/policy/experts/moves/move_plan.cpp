#include "policy/experts/moves/move_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_order.h"
#include "policy/experts/moves/sources.h"

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts/moves");
}

constexpr std::int32_t kStagingMax = 1 << 16;

/// [old ranks]: the host that each became, -1 when its memory is gone.
base::Result<std::vector<std::int32_t>> hosts_of(const MoveRequest& request, std::int32_t& hosts) {
  const std::int32_t old_ranks = request.before.ranks, ranks = request.after.ranks;
  if (!request.rank_before.empty() && request.rank_before.size() != at(ranks))
    return bad(
        fmt::format("rank_before names {} ranks, the new shape has {}", request.rank_before.size(), ranks));
  std::vector<std::int32_t> host(at(old_ranks), -1);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const std::int32_t old = !request.rank_before.empty() ? request.rank_before[at(rank)]
                             : rank < old_ranks           ? rank
                                                          : -1;
    if (old < -1 || old >= old_ranks)
      return bad(fmt::format("new rank {} was old rank {}, which is not one of 0 to {}, nor -1", rank, old,
                             old_ranks - 1));
    if (old < 0) continue;
    if (host[at(old)] >= 0)
      return bad(fmt::format("old rank {} is both new rank {} and {}", old, host[at(old)], rank));
    host[at(old)] = rank;
  }
  std::vector<bool> lost(at(old_ranks));
  for (const std::int32_t old : request.lost) {
    if (old < 0 || old >= old_ranks)
      return bad(fmt::format("lost rank {} is not one of the old ranks 0 to {}", old, old_ranks - 1));
    lost[at(old)] = true;
  }
  hosts = ranks;
  for (std::int32_t old = 0; old < old_ranks; ++old) {
    // A lost rank that has a successor starts empty there; one that only leaves still sends.
    if (lost[at(old)])
      host[at(old)] = -1;
    else if (host[at(old)] < 0)
      host[at(old)] = hosts++;
  }
  return host;
}

base::Status check_request(const MoveRequest& request) {
  TRIMTAB_TRY(check(request.before, request.map_before, false));
  TRIMTAB_TRY(check(request.after, request.map_after, false));
  if (request.before.experts != request.after.experts) {
    return bad(fmt::format("{} experts before, {} after: moves change places, not experts",
                           request.before.experts, request.after.experts));
  }
  const std::int32_t staging = request.options.staging_slots;
  if (staging < 0 || staging > kStagingMax)
    return bad(fmt::format("{} staging slots: use 1, or up to {} for fewer batches", staging, kStagingMax));
  return {};
}

/// All copies that a layer needs, sources chosen.
class Needs {
 public:
  Needs(const MoveRequest& request, MovePlan& plan) : request_(request), plan_(plan) {
    const auto pairs = at(plan.hosts) * at(plan.experts);
    held_.resize(pairs);
    coming_.assign(pairs, -1);
    holders_.resize(at(plan.experts));
    for (std::int32_t host = 0; host < plan.hosts; ++host) {
      for (std::int32_t slot = 0; slot < plan.width; ++slot) {
        const std::int32_t expert = plan.before[at(host) * at(plan.places_per_host()) + at(slot)];
        if (expert < 0 || held_[pair(host, expert)]) continue;
        held_[pair(host, expert)] = true;
        holders_[at(expert)].push_back(host);
      }
    }
  }

  std::vector<PendingCopy> copies() {
    for (std::int32_t host = 0; host < request_.after.ranks; ++host) {
      for (std::int32_t slot = 0; slot < request_.after.slots_per_rank(); ++slot) need(host, slot);
    }
    reload();
    choose();
    return std::move(copies_);
  }

 private:
  std::size_t pair(std::int32_t host, std::int32_t expert) const {
    return at(host) * at(plan_.experts) + at(expert);
  }

  void need(std::int32_t host, std::int32_t slot) {
    const std::size_t place = at(host) * at(plan_.places_per_host()) + at(slot);
    const std::int32_t expert = plan_.after[place];
    if (plan_.before[place] == expert) return;
    PendingCopy copy{expert, {host, slot}, host};
    // Otherwise it comes from the copy that the host has, or from the one it receives.
    if (!held_[pair(host, expert)] && coming_[pair(host, expert)] < 0) {
      coming_[pair(host, expert)] = static_cast<std::int32_t>(copies_.size());
      copy.source = -1;
      wanted_.push_back(static_cast<std::int32_t>(copies_.size()));
    }
    copies_.push_back(copy);
  }

  /// An expert that no living host holds is read from storage once, by the rank that is sent least, and sent
  /// on from there.
  void reload() {
    std::vector<std::int64_t> load(at(plan_.hosts));
    std::vector<std::int32_t> by(at(plan_.experts), -1);  // reloading copy
    for (const std::int32_t i : wanted_) ++load[at(copies_[at(i)].to.host)];
    for (const std::int32_t i : wanted_) {
      const std::int32_t expert = copies_[at(i)].expert;
      if (!holders_[at(expert)].empty()) continue;
      std::int32_t& chosen = by[at(expert)];
      if (chosen < 0 || load[at(copies_[at(i)].to.host)] < load[at(copies_[at(chosen)].to.host)]) chosen = i;
    }
    for (std::int32_t expert = 0; expert < plan_.experts; ++expert) {
      if (by[at(expert)] < 0) continue;
      const std::int32_t host = copies_[at(by[at(expert)])].to.host;
      holders_[at(expert)].push_back(host);
      ++plan_.by_host[at(host)].reloads;
      plan_.reloaded.push_back(expert);
    }
    std::erase_if(wanted_, [&](std::int32_t i) { return by[at(copies_[at(i)].expert)] == i; });
  }

  void choose() {
    SendJobs jobs;
    for (const std::int32_t i : wanted_) {
      const PendingCopy& copy = copies_[at(i)];
      const std::vector<std::int32_t>& all = holders_[at(copy.expert)];
      const auto is_near = [&](std::int32_t host) { return plan_.same_node(host, copy.to.host); };
      const bool near = request_.options.same_node_first && std::ranges::any_of(all, is_near);
      for (const std::int32_t host : all) {
        if (!near || is_near(host)) jobs.allowed.push_back(host);
      }
      jobs.first.push_back(static_cast<std::int32_t>(jobs.allowed.size()));
    }
    const SourceChoice choice = choose_sources(plan_.hosts, jobs);
    for (std::size_t job = 0; job < wanted_.size(); ++job) {
      PendingCopy& copy = copies_[at(wanted_[job])];
      copy.source = choice.source[job];
      ++plan_.by_host[at(copy.source)].sends;
      ++plan_.by_host[at(copy.to.host)].receives;
    }
    plan_.sends_max_bound = choice.bound;
  }

  const MoveRequest& request_;
  MovePlan& plan_;
  std::vector<bool> held_;            // [hosts, experts]
  std::vector<std::int32_t> coming_;  // [hosts, experts]: the copy that brings it
  std::vector<std::vector<std::int32_t>> holders_;
  std::vector<PendingCopy> copies_;
  std::vector<std::int32_t> wanted_;  // those that cross a link
};

base::Status check_staging(const MovePlan& plan, std::span<const PendingCopy> copies) {
  std::vector<std::int32_t> needed(at(plan.hosts));
  for (const PendingCopy& copy : copies) {
    const bool old = plan.before[at(copy.to.host) * at(plan.places_per_host()) + at(copy.to.slot)] >= 0;
    if (old && copy.source != copy.to.host) ++needed[at(copy.to.host)];
  }
  const auto most = std::ranges::max_element(needed);
  if (most == needed.end() || *most <= plan.staging) return {};
  return bad(
      fmt::format("rank {} receives {} copies while the old map stays whole, but has {} staging slots: give "
                  "{}, or drop keep_old_map",
                  most - needed.begin(), *most, plan.staging, *most));
}

void lay_out(const MoveRequest& request, std::span<const std::int32_t> host_of_old, MovePlan& plan) {
  const std::int32_t old_width = request.before.slots_per_rank(), width = request.after.slots_per_rank();
  plan.width = std::max(old_width, width);
  const std::size_t places = at(plan.places_per_host());
  plan.before.assign(at(plan.hosts) * places, -1);
  plan.after.assign(at(plan.hosts) * places, -1);
  for (std::int32_t old = 0; old < request.before.ranks; ++old) {
    const std::int32_t host = host_of_old[at(old)];
    if (host < 0) continue;
    std::ranges::copy(request.map_before.subspan(at(old) * at(old_width), at(old_width)),
                      plan.before.begin() + static_cast<std::ptrdiff_t>(at(host) * places));
  }
  for (std::int32_t rank = 0; rank < request.after.ranks; ++rank) {
    std::ranges::copy(request.map_after.subspan(at(rank) * at(width), at(width)),
                      plan.after.begin() + static_cast<std::ptrdiff_t>(at(rank) * places));
  }
}

}  // namespace

base::Result<MovePlan> plan_moves(const MoveRequest& request) {
  TRIMTAB_TRY(check_request(request));
  auto costs = costs_of(request.options.budget);
  if (!costs) return tl::unexpected(std::move(costs).error());
  MovePlan plan;
  auto host_of_old = hosts_of(request, plan.hosts);
  if (!host_of_old) return tl::unexpected(std::move(host_of_old).error());
  plan.experts = request.after.experts;
  plan.ranks = request.after.ranks;
  plan.nodes = request.after.nodes;
  plan.staging = request.options.staging_slots;
  plan.bytes_per_copy = request.options.budget.bytes_per_copy;
  plan.by_host.resize(at(plan.hosts));
  lay_out(request, *host_of_old, plan);
  std::vector<PendingCopy> copies = Needs(request, plan).copies();
  if (request.options.keep_old_map) TRIMTAB_TRY(check_staging(plan, copies));
  TRIMTAB_TRY(order_copies(request.options, *costs, std::move(copies), plan));
  for (const MoveBatch& batch : plan.batches) {
    for (const Move& move : batch) {
      if (move.kind == MoveKind::kLocal) ++plan.by_host[at(move.to.host)].locals;
    }
  }
  return plan;
}

std::int64_t MovePlan::sends_max() const {
  std::int64_t most = 0;
  for (const HostMoves& host : by_host) most = std::max(most, host.sends);
  return most;
}

std::int64_t MovePlan::receives_max() const {
  std::int64_t most = 0;
  for (const HostMoves& host : by_host) most = std::max(most, host.receives);
  return most;
}

std::int64_t MovePlan::received() const {
  std::int64_t sum = 0;
  for (const HostMoves& host : by_host) sum += host.receives;
  return sum;
}

std::vector<std::int32_t> valid_places(const MovePlan& plan, std::int32_t batch, bool running) {
  const auto count = static_cast<std::int32_t>(plan.batches.size());
  if (batch >= count) return plan.after;
  std::vector<std::int32_t> valid = plan.before;
  const auto place = [&](const Move& move) {
    return at(move.to.host) * at(plan.places_per_host()) + at(move.to.slot);
  };
  for (std::int32_t i = 0; i < batch; ++i) {
    for (const Move& move : plan.batches[at(i)]) valid[place(move)] = move.expert;
  }
  // Staging that no batch reads any more is free, for this layer or another.
  std::vector<bool> read(valid.size()), rewritten(valid.size());
  for (std::size_t i = at(batch); i < plan.batches.size(); ++i) {
    for (const Move& move : plan.batches[i]) {
      if (move.kind == MoveKind::kReload) continue;
      const std::size_t from = at(move.from.host) * at(plan.places_per_host()) + at(move.from.slot);
      if (!rewritten[from]) read[from] = true;
    }
    for (const Move& move : plan.batches[i]) rewritten[place(move)] = true;
  }
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (static_cast<std::int32_t>(i) % plan.places_per_host() >= plan.width && !read[i]) valid[i] = -1;
  }
  if (running) {
    for (const Move& move : plan.batches[at(batch)]) valid[place(move)] = -1;
  }
  return valid;
}

std::string describe(const MovePlan& plan) {
  std::int64_t locals = 0;
  for (const HostMoves& host : plan.by_host) locals += host.locals;
  std::string out = fmt::format(
      "{} copies over links (a rank sends at most {}, receives at most {}), {} inside ranks, in {} batches",
      plan.received(), plan.sends_max(), plan.receives_max(), locals, plan.batches.size());
  if (plan.slices > 1) out += fmt::format(" of {} slices", plan.slices);
  if (plan.stall_ns > 0)
    out += fmt::format(" of at most {:.3f} ms", static_cast<double>(plan.stall_ns) / 1e6);
  if (!plan.reloaded.empty()) out += fmt::format(", {} experts from storage", plan.reloaded.size());
  return out;
}

}  // namespace trimtab::experts
