#include "policy/experts/moves/batches.h"

#include <fmt/format.h>

#include <algorithm>

namespace trimtab::experts {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts/moves");
}

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// bytes / speed in nanoseconds, rounded up; 0 without a speed.
std::int64_t copy_ns(std::int64_t bytes, std::int64_t bytes_per_s) {
  if (bytes_per_s == 0) return 0;
  const auto ns = (static_cast<__int128>(bytes) * 1'000'000'000 + bytes_per_s - 1) / bytes_per_s;
  constexpr std::int64_t kMax = std::int64_t{1} << 50;  // thirteen days, so that sums stay exact
  return ns > kMax ? kMax : static_cast<std::int64_t>(ns);
}

/// What one batch of a layer, or one round of several, asks of the hosts.
struct Load {
  std::vector<HostTime> hosts;
  std::vector<bool> staging;  // [hosts]: something lies in its staging slots
};

std::vector<Load> loads_of(const MovePlan& plan, const MoveCosts& costs) {
  std::vector<Load> loads;
  // From the first batch that writes into a host's staging to the last one that reads it.
  std::vector<std::size_t> first(at(plan.hosts), plan.batches.size()), last(at(plan.hosts));
  for (std::size_t i = 0; i < plan.batches.size(); ++i) {
    loads.push_back({host_times(plan, plan.batches[i], costs), std::vector<bool>(at(plan.hosts))});
    for (const Move& move : plan.batches[i]) {
      if (move.to.slot >= plan.width) first[at(move.to.host)] = std::min(first[at(move.to.host)], i);
      if (move.from.slot >= plan.width) last[at(move.from.host)] = i;
    }
  }
  for (std::size_t host = 0; host < first.size(); ++host) {
    for (std::size_t i = first[host]; i < loads.size() && i <= last[host]; ++i) loads[i].staging[host] = true;
  }
  return loads;
}

bool fits(const std::vector<Load>& rounds, std::size_t start, const std::vector<Load>& needs,
          std::int64_t limit_ns) {
  for (std::size_t i = 0; i < needs.size() && start + i < rounds.size(); ++i) {
    const Load& round = rounds[start + i];
    for (std::size_t host = 0; host < round.hosts.size(); ++host) {
      if (round.staging[host] && needs[i].staging[host]) return false;
      HostTime together = round.hosts[host];
      together += needs[i].hosts[host];
      if (limit_ns > 0 && together.ns() > limit_ns) return false;
    }
  }
  return true;
}

}  // namespace

MovePosition MoveSchedule::next(MovePosition position) const {
  if (position.slice + 1 < slices) return {position.round, position.slice + 1};
  return {position.round + 1, 0};
}

base::Result<MoveCosts> costs_of(const MoveBudget& budget) {
  const auto check = [](const char* what, std::int64_t value) -> base::Status {
    if (value >= 0) return {};
    return bad(fmt::format("{} is {}: it cannot be negative", what, value));
  };
  TRIMTAB_TRY(check("bytes_per_copy", budget.bytes_per_copy));
  TRIMTAB_TRY(check("link_bytes_per_s", budget.link_bytes_per_s));
  TRIMTAB_TRY(check("node_link_bytes_per_s", budget.node_link_bytes_per_s));
  TRIMTAB_TRY(check("local_bytes_per_s", budget.local_bytes_per_s));
  TRIMTAB_TRY(check("stall_ns", budget.stall_ns));
  if (budget.stall_ns > 0 && (budget.bytes_per_copy == 0 || budget.link_bytes_per_s == 0)) {
    return bad(
        fmt::format("a stall of at most {} ns needs bytes_per_copy and link_bytes_per_s, which are {} and {}",
                    budget.stall_ns, budget.bytes_per_copy, budget.link_bytes_per_s));
  }
  const std::int64_t node =
      budget.node_link_bytes_per_s > 0 ? budget.node_link_bytes_per_s : budget.link_bytes_per_s;
  const std::int64_t local = budget.local_bytes_per_s > 0 ? budget.local_bytes_per_s : node;
  return MoveCosts{copy_ns(budget.bytes_per_copy, budget.link_bytes_per_s),
                   copy_ns(budget.bytes_per_copy, node), copy_ns(budget.bytes_per_copy, local)};
}

HostTime& HostTime::operator+=(const HostTime& other) {
  send_ns += other.send_ns;
  receive_ns += other.receive_ns;
  local_ns += other.local_ns;
  return *this;
}

std::vector<HostTime> host_times(const MovePlan& plan, const MoveBatch& batch, const MoveCosts& costs) {
  std::vector<HostTime> times(at(plan.hosts));
  for (const Move& move : batch) {
    HostTime& receiver = times[at(move.to.host)];
    if (move.kind == MoveKind::kLocal) {
      receiver.local_ns += costs.local_ns;
      continue;
    }
    const bool near = move.kind == MoveKind::kSend && plan.same_node(move.from.host, move.to.host);
    const std::int64_t ns = near ? costs.node_link_ns : costs.link_ns;
    receiver.receive_ns += ns;
    if (move.kind == MoveKind::kSend) times[at(move.from.host)].send_ns += ns;
  }
  return times;
}

base::Result<MoveSchedule> schedule_layers(std::span<const MovePlan> plans, const MoveBudget& budget) {
  auto costs = costs_of(budget);
  if (!costs) return tl::unexpected(std::move(costs).error());
  std::int64_t limit_ns = budget.stall_ns;
  if (limit_ns > 0) limit_ns = std::max({limit_ns, costs->link_ns, costs->node_link_ns, costs->local_ns});
  MoveSchedule schedule;
  std::vector<Load> rounds;
  std::size_t earliest = 0;
  for (std::size_t layer = 0; layer < plans.size(); ++layer) {
    const MovePlan& plan = plans[layer];
    if (plan.hosts != plans.front().hosts) {
      return bad(fmt::format("layer {} moves between {} hosts, layer 0 between {}: schedule them apart",
                             layer, plan.hosts, plans.front().hosts));
    }
    if (plan.bytes_per_copy != budget.bytes_per_copy) {
      return bad(fmt::format("layer {} was planned for copies of {} bytes, the budget says {}", layer,
                             plan.bytes_per_copy, budget.bytes_per_copy));
    }
    const std::vector<Load> needs = loads_of(plan, *costs);
    if (needs.empty()) continue;
    // Layers start in order, so that a host which follows the list never goes back.
    std::size_t start = earliest;
    while (!fits(rounds, start, needs, limit_ns)) ++start;
    earliest = start;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      if (start + i == rounds.size()) {
        rounds.push_back({std::vector<HostTime>(at(plan.hosts)), std::vector<bool>(at(plan.hosts))});
        schedule.rounds.emplace_back();
      }
      Load& round = rounds[start + i];
      for (std::size_t host = 0; host < round.hosts.size(); ++host) {
        round.hosts[host] += needs[i].hosts[host];
        round.staging[host] = round.staging[host] || needs[i].staging[host];
        schedule.stall_ns = std::max(schedule.stall_ns, round.hosts[host].ns());
      }
      schedule.rounds[start + i].push_back({static_cast<std::int32_t>(layer), static_cast<std::int32_t>(i)});
    }
  }
  if (budget.stall_ns > 0 && schedule.stall_ns > budget.stall_ns) {
    schedule.slices = static_cast<std::int32_t>((schedule.stall_ns + budget.stall_ns - 1) / budget.stall_ns);
    schedule.stall_ns = (schedule.stall_ns + schedule.slices - 1) / schedule.slices;
  }
  return schedule;
}

}  // namespace trimtab::experts
