#include "experts_eval/weighted_rolling.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "experts_eval/published.h"
#include "policy/experts/dispatch/share_table.h"
#include "policy/experts/dispatch/shares.h"
#include "policy/experts/load_window.h"

namespace trimtab::experts_eval {
namespace {

using experts::Shape;
using experts::ShareSolver;
using experts::ShareTable;
using experts::SlotMap;

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

/// Map, shares and table that serve.
class Server {
 public:
  static base::Result<Server> make(const Shape& shape, const SlotMap& map, const WeightedOptions& options) {
    auto shares = ShareSolver::make(shape, map,
                                    {.sweeps_before = options.sweeps_before,
                                     .sweeps_after = options.sweeps_after,
                                     .optimal = options.optimal});
    if (!shares) return tl::unexpected(shares.error());
    auto least = ShareSolver::make(shape, map);
    auto table = ShareTable::make(shape, map, 0, options.parts);
    if (!table) return tl::unexpected(table.error());
    return Server(shape, map, std::move(*shares), std::move(*least), std::move(*table));
  }

  base::Status set_shares(std::span<const double> estimate) {
    const auto solved = shares_.solve(estimate);
    if (!solved) return tl::unexpected(solved.error());
    shares_.shares(share_of_slot_);
    table_.set(shares_);
    return {};
  }

  void judge(const RankedLoads& loads, std::int32_t step, WeightedOutcome& outcome) {
    const std::span<const std::int32_t> counts = loads.counts(step);
    double total = 0;
    for (const std::int32_t count : counts) total += count;
    outcome.mean += total / shape_.ranks;
    outcome.even += peak_of([&](std::int32_t slot, std::size_t expert) {
      return static_cast<double>(counts[expert]) / copies_[expert] + 0 * slot;
    });
    outcome.weighted += peak_of(
        [&](std::int32_t slot, std::size_t expert) { return counts[expert] * share_of_slot_[index(slot)]; });
    outcome.integer += static_cast<double>(whole_peak(loads, step));
    outcome.bound += least_.solve(counts)->peak_tokens;
    ++outcome.steps;
  }

 private:
  Server(const Shape& shape, const SlotMap& map, ShareSolver shares, ShareSolver least, ShareTable table)
      : shape_(shape),
        map_(map),
        copies_(experts::copies_of(shape, map)),
        shares_(std::move(shares)),
        least_(std::move(least)),
        table_(std::move(table)),
        share_of_slot_(map.size()),
        split_(index(table_.copies_max())) {}

  template <class F>
  double peak_of(F&& load_of_slot) const {
    double peak = 0;
    for (std::int32_t rank = 0, slot = 0; rank < shape_.ranks; ++rank) {
      double load = 0;
      for (std::int32_t i = 0; i < shape_.slots_per_rank(); ++i, ++slot) {
        load += load_of_slot(slot, index(map_[index(slot)]));
      }
      peak = std::max(peak, load);
    }
    return peak;
  }

  // Every source rank splits its own tokens by the table.
  std::int64_t whole_peak(const RankedLoads& loads, std::int32_t step) {
    std::vector<std::int64_t> carried(index(shape_.ranks));
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      const std::span<const std::int32_t> slots = table_.slots_of(expert);
      if (slots.size() == 1) {
        carried[index(shape_.rank_of_slot(slots[0]))] += loads.counts(step)[index(expert)];
        continue;
      }
      const std::span<const std::int32_t> sources = loads.by_rank(step, expert);
      for (std::int32_t source = 0; source < loads.ranks(); ++source) {
        table_.split(expert, source, sources[index(source)], split_);
        for (std::size_t k = 0; k < slots.size(); ++k) {
          carried[index(shape_.rank_of_slot(slots[k]))] += split_[k];
        }
      }
    }
    return std::ranges::max(carried);
  }

  Shape shape_;
  SlotMap map_;
  std::vector<std::int32_t> copies_;
  ShareSolver shares_, least_;
  ShareTable table_;
  std::vector<double> share_of_slot_;
  std::vector<std::int64_t> split_;
};

class Planner {
 public:
  Planner(const Shape& shape, const RankedLoads& loads, const WeightedOptions& options)
      : shape_(shape), loads_(loads), options_(options), repairer_(options.repair) {}

  base::Result<SlotMap> first() const {
    const auto window = window_before(options_.first_step, options_.first_window_steps);
    if (!window) return tl::unexpected(window.error());
    if (options_.planner == RollingPlanner::kPublished) return deepinfer_plan(shape_, *window);
    auto plan = experts::plan_layer(shape_, *window, {}, {.start = experts::Start::kFresh});
    if (!plan) return tl::unexpected(plan.error());
    return std::move(plan->map);
  }

  base::Result<SlotMap> next(std::int32_t step, const SlotMap& current, std::span<const double> estimate) {
    if (options_.planner == RollingPlanner::kRepair) {
      auto repair = repairer_.repair(shape_, estimate, current);
      if (!repair) return tl::unexpected(repair.error());
      return std::move(repair->map);
    }
    const auto window = window_before(step, options_.window_steps);
    if (!window) return tl::unexpected(window.error());
    if (options_.planner == RollingPlanner::kPublished) return deepinfer_plan(shape_, *window);
    auto plan = experts::plan_layer(shape_, *window, current,
                                    {.start = experts::Start::kIncremental,
                                     .move_price = options_.move_price,
                                     .recency_steps = options_.recency_steps});
    if (!plan) return tl::unexpected(plan.error());
    return std::move(plan->map);
  }

 private:
  base::Result<experts::LoadWindow> window_before(std::int32_t step, std::int32_t steps) const {
    const std::int32_t from = std::max(0, step - steps);
    return experts::LoadWindow::make(loads_.counts(from).data(), step - from, loads_.experts(),
                                     loads_.experts());
  }

  const Shape& shape_;
  const RankedLoads& loads_;
  const WeightedOptions& options_;
  experts::Repairer repairer_;
};

base::Status check_options(const Shape& shape, const RankedLoads& loads, const WeightedOptions& options) {
  TRIMTAB_TRY(experts::check(shape));
  const auto bad = [](std::string message) {
    return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_eval");
  };
  if (loads.experts() != shape.experts || loads.ranks() != shape.ranks) {
    return bad(fmt::format("loads of {} experts on {} ranks for a shape of {} on {}", loads.experts(),
                           loads.ranks(), shape.experts, shape.ranks));
  }
  if (options.first_step < 1 || options.first_step >= loads.steps()) {
    return bad(
        fmt::format("judging from step {} of {}: the first plan needs steps before it, and there must "
                    "be some after it",
                    options.first_step, loads.steps()));
  }
  if (options.every_steps < 1 || options.window_steps < 1 || options.first_window_steps < 1 ||
      options.delay_steps < 0) {
    return bad(fmt::format("a plan every {} steps from windows of {} and {}, {} late: use at least 1 and 0",
                           options.every_steps, options.window_steps, options.first_window_steps,
                           options.delay_steps));
  }
  return {};
}

struct Pending {
  std::int32_t step;
  SlotMap map;
};

}  // namespace

WeightedOutcome& WeightedOutcome::operator+=(const WeightedOutcome& other) {
  mean += other.mean, even += other.even, weighted += other.weighted, integer += other.integer;
  bound += other.bound, received += other.received, steps += other.steps;
  return *this;
}

base::Result<WeightedOutcome> weighted_rolling(const Shape& shape, const RankedLoads& loads,
                                               const WeightedOptions& options) {
  TRIMTAB_TRY(check_options(shape, loads, options));
  Planner planner(shape, loads, options);
  auto planned = planner.first();
  if (!planned) return tl::unexpected(planned.error());
  SlotMap latest = std::move(*planned);
  auto server = Server::make(shape, latest, options);
  if (!server) return tl::unexpected(server.error());
  experts::LoadEstimator estimator(shape.experts, options.estimator);
  for (std::int32_t step = 0; step < options.first_step; ++step) estimator.observe(loads.counts(step));
  WeightedOutcome outcome;
  std::deque<Pending> pending;
  for (std::int32_t step = options.first_step; step < loads.steps(); ++step) {
    const bool due = (step - options.first_step) % options.every_steps == 0;
    if (due && options.planner != RollingPlanner::kKeep) {
      auto next = planner.next(step, latest, estimator.estimate());
      if (!next) return tl::unexpected(next.error());
      outcome.received += experts::received_copies(shape, latest, *next);
      if (*next != latest) pending.push_back({step + options.delay_steps, *next});
      latest = std::move(*next);
    }
    while (!pending.empty() && pending.front().step <= step) {
      server = Server::make(shape, pending.front().map, options);
      if (!server) return tl::unexpected(server.error());
      pending.pop_front();
    }
    TRIMTAB_TRY(server->set_shares(estimator.estimate()));
    server->judge(loads, step, outcome);
    estimator.observe(loads.counts(step));
  }
  return outcome;
}

}  // namespace trimtab::experts_eval
