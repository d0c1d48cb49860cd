#include "sim/faults.h"

#include <fmt/format.h>

#include <algorithm>

namespace trimtab::sim {

using model::Fault;
using model::FaultKind;
using model::Role;

namespace {

struct Size {
  std::int64_t targets = 0, ranks = 1;
  const char* noun = "";
  const char* key = "";  // that says how many there are
};

Size size_of(const Fault& fault, const model::Scenario& scenario) {
  const model::ClusterConfig& cluster = scenario.cluster;
  switch (fault.kind) {
    case FaultKind::kStorageNode:
      return {scenario.storage.nodes, 1, "storage nodes", "simulation.storage.nodes"};
    case FaultKind::kEntrypoint:
      return {scenario.entrypoints.count, 1, "entrypoints", "simulation.entrypoints.count"};
    case FaultKind::kQueue:
      return {1, 1, "queues", ""};
    default:
      break;
  }
  if (fault.role == Role::kPrefill)
    return {cluster.prefill.engines, cluster.prefill.ranks, "prefill engines", "prefill.engines"};
  if (fault.role == Role::kDecode)
    return {cluster.decode.groups, cluster.decode.ranks, "decode groups", "decode.groups"};
  return {cluster.vision.machines, cluster.vision.encoders, "vision machines", "vision.machines"};
}

tl::unexpected<base::Error> refuse(std::string message, const Fault& fault) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), fault.where);
}

}  // namespace

base::Status FaultSchedule::check(const model::Scenario& scenario) {
  for (const Fault& fault : scenario.faults.faults) {
    const Size size = size_of(fault, scenario);
    if (size.targets == 0) {
      return refuse(fmt::format("a fault of {}, and the scenario has none: set {}", size.noun, size.key),
                    fault);
    }
    for (const std::int64_t target : fault.targets) {
      if (target < 0 || target >= size.targets) {
        return refuse(fmt::format("targets has {}: the scenario has {} {}, 0 to {} ({})", target,
                                  size.targets, size.noun, size.targets - 1, size.key),
                      fault);
      }
    }
    for (const std::int64_t rank : fault.ranks) {
      if (rank < 0 || rank >= size.ranks) {
        return refuse(fmt::format("ranks has {}: each of the {} has {}, 0 to {}", rank, size.noun, size.ranks,
                                  size.ranks - 1),
                      fault);
      }
    }
  }
  return {};
}

FaultSchedule::FaultSchedule(const model::Scenario& scenario) : seed_(scenario.faults.seed) {
  for (const Fault& fault : scenario.faults.faults) {
    const Size size = size_of(fault, scenario);
    std::vector<std::int64_t> targets = fault.targets;
    for (std::int64_t i = 0; fault.targets.empty() && i < size.targets; ++i) targets.push_back(i);
    for (const std::int64_t target : targets) {
      for (const std::int64_t rank : fault.ranks)
        add(fault, static_cast<std::uint32_t>(target), static_cast<std::uint32_t>(rank), 1);
      if (fault.ranks.empty())
        add(fault, static_cast<std::uint32_t>(target), Strike::kAllRanks,
            static_cast<std::uint32_t>(size.ranks));
    }
  }
}

void FaultSchedule::add(const Fault& fault, std::uint32_t target, std::uint32_t rank, std::uint32_t ranks) {
  const Strike strike{fault.kind, fault.role, target, rank, fault.loses_content, fault.start_up};
  Entry entry{strike,     fault.at.value_or(Nanos{}),
              fault.span, fault.until,
              0,          false,
              ranks,      base::Prng(seed_, 0xfa017000ULL + entries_.size())};
  entry.draws_rank = fault.kind == FaultKind::kRank && rank == Strike::kAllRanks;
  if (fault.rate_per_hour > 0) entry.gap_mean_s = 3'600.0 / fault.rate_per_hour;
  if (fault.down_share > 0) {
    entry.gap_mean_s =
        base::to_seconds(fault.span + fault.start_up) * (1 - fault.down_share) / fault.down_share;
  }
  if (fault.span != base::kForever) longest_ = std::max(longest_, fault.span + fault.start_up);
  longest_ = std::max(longest_, fault.start_up);
  entries_.push_back(std::move(entry));
}

void FaultSchedule::start(EventQueue& queue) {
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.strike.kind == FaultKind::kLateStart) {
      ++expected_;
      queue.at(entry.at, EventKind::kFault, i, kEnds);
    } else if (entry.gap_mean_s > 0) {
      schedule(i, queue);
    } else {
      ++expected_;
      queue.at(entry.at, EventKind::kFault, i, kBegins);
    }
  }
}

std::vector<Strike> FaultSchedule::absent() const {
  std::vector<Strike> absent;
  for (const Entry& entry : entries_) {
    if (entry.strike.kind == FaultKind::kLateStart) absent.push_back(entry.strike);
  }
  return absent;
}

/// A random one again.
void FaultSchedule::schedule(std::uint32_t number, EventQueue& queue) {
  Entry& entry = entries_[number];
  const double gap = std::min(entry.prng.exponential(entry.gap_mean_s), 1e9);
  const Nanos at = queue.now() + Nanos{static_cast<std::int64_t>(gap * 1e9)};
  if (at < entry.until) queue.at(at, EventKind::kFault, number, kBegins);
}

Strike FaultSchedule::begin(std::uint32_t number, EventQueue& queue) {
  Entry& entry = entries_[number];
  if (entry.gap_mean_s == 0) --expected_;
  if (entry.draws_rank) entry.strike.rank = static_cast<std::uint32_t>(entry.prng.below(entry.ranks));
  if (entry.span != base::kForever) {
    if (entry.gap_mean_s == 0) ++expected_;
    queue.after(entry.span, EventKind::kFault, number, kEnds);
  }
  return entry.strike;
}

Strike FaultSchedule::end(std::uint32_t number, EventQueue& queue) {
  Entry& entry = entries_[number];
  if (entry.gap_mean_s == 0) {
    --expected_;
  } else {
    schedule(number, queue);
  }
  return entry.strike;
}

}  // namespace trimtab::sim
