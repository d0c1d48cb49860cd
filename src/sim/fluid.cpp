#include "sim/fluid.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "policy/cost/cost_model.h"
#include "policy/prefill/orders.h"
#include "policy/prefill/queues.h"

namespace trimtab::sim {
namespace {

struct Waiting {
  Nanos key;
  std::uint64_t sequence = 0;
  Workload::Item item;
  bool operator>(const Waiting& other) const {
    return key != other.key ? key > other.key : sequence > other.sequence;
  }
};
using Heap = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;

class Server {
 public:
  Server(const model::Scenario& scenario, const std::vector<RequestWork>& work, Workload workload,
         const policy::QueueOrder& order, IdealServer kind, const BusyWindow& window)
      : scenario_(scenario),
        window_(window),
        work_(work),
        workload_(std::move(workload)),
        order_(order),
        orders_(policy::QueueConfig::from(scenario.cluster.prefill).order_config),
        cost_(scenario.profile.cost, scenario.cluster.prefill.quota_scope) {
    WorkSums sums;
    for (const RequestWork& each : work) sums.add(each, scenario.decode.tokens_per_step);
    const double ranks =
        static_cast<double>(scenario.cluster.prefill.engines) * scenario.cluster.prefill.ranks;
    speed_ = offline(sums, scenario).prefill_speed * (kind == IdealServer::kFluid ? ranks : 1.0);
    for (std::size_t i = 0; i < (kind == IdealServer::kFluid ? 1 : static_cast<std::size_t>(ranks)); ++i)
      free_.push(Nanos{});
    out_.requests.resize(scenario.report_bounds_tokens.size() + 1);
    out_.well.resize(out_.requests.size());
  }

  IdealService run() {
    draw();
    while (!arrivals_.empty() || !queue_.empty()) {
      if (queue_.empty()) now_ = std::max(now_, arrivals_.top().key);
      while (!arrivals_.empty() && arrivals_.top().key <= now_) arrive();
      if (free_.top() <= now_) {
        serve();
      } else {
        now_ = free_.top();
        if (!arrivals_.empty()) now_ = std::min(now_, arrivals_.top().key);
      }
    }
    out_.span = last_;
    return std::move(out_);
  }

 private:
  void draw() {
    if (const auto item = workload_.next()) arrivals_.push({item->at, 2 * sequence_++, *item});
  }
  void arrive() {
    Waiting one = arrivals_.top();
    arrivals_.pop();
    if (one.sequence % 2 == 0) draw();  // it depended on nothing: the next such one
    const RequestWork& work = work_[one.item.request];
    const policy::QueueItem item{RequestId{one.sequence}, TokenCount{work.prompt},
                                 cost_.request(TokenCount{work.hit}, TokenCount{work.prompt}), 0,
                                 one.item.at};
    one.key = order_.key(item, orders_);
    queue_.push(one);
  }
  void serve() {
    const Workload::Item item = queue_.top().item;
    queue_.pop();
    free_.pop();
    const RequestWork& work = work_[item.request];
    const Nanos end =
        now_ + Nanos{static_cast<std::int64_t>(static_cast<double>(work.work().value) / speed_)};
    free_.push(end);
    last_ = std::max(last_, end);
    out_.busy += std::max(Nanos{}, std::min(end, window_.until) - std::max(now_, window_.from));
    ++out_.requests[work.tier];
    if (served_well(work, end - item.at)) ++out_.well[work.tier];
    const model::DecodeStepCost& step = scenario_.profile.decode_step;
    const double steps = static_cast<double>(work.output - 1) / scenario_.decode.tokens_per_step;
    const double alone = steps * (static_cast<double>(step.fixed.value) +
                                  decode_step_ns(step, 0, static_cast<double>(work.prompt)));
    if (const auto next = workload_.follow(item, end + Nanos{static_cast<std::int64_t>(alone)}))
      arrivals_.push({next->at, 2 * sequence_++ + 1, *next});
  }
  bool served_well(const RequestWork& work, Nanos ttft) const {
    const Nanos quota = cost_.request(TokenCount{work.hit}, TokenCount{work.prompt});
    const Nanos budget{scenario_.cluster.prefill.step_budget_ms * 1'000'000};
    const std::int64_t steps = 1 + quota.value / std::max<std::int64_t>(budget.value, 1);
    const Nanos own = work.work() + Nanos{cost_.step_fixed().value * steps};
    const std::size_t last = scenario_.slo_targets.size() - 1;
    const Nanos target = scenario_.slo_targets[std::min<std::size_t>(work.tier, last)];
    return static_cast<double>(ttft.value) <=
           static_cast<double>(target.value) + scenario_.slo_work * static_cast<double>(own.value);
  }

  using RequestId = model::RequestId;
  using TokenCount = base::TokenCount;
  const model::Scenario& scenario_;
  BusyWindow window_;
  const std::vector<RequestWork>& work_;
  Workload workload_;
  const policy::QueueOrder& order_;
  policy::OrderConfig orders_;
  policy::CostModel cost_;
  double speed_ = 1;
  std::priority_queue<Nanos, std::vector<Nanos>, std::greater<>> free_;  // when each server is
  Heap arrivals_, queue_;
  std::uint64_t sequence_ = 0;
  Nanos now_, last_;
  IdealService out_;
};

}  // namespace

double IdealService::share_least() const {
  double least = 1;
  for (std::size_t t = 0; t < requests.size(); ++t) {
    if (requests[t] > 0)
      least = std::min(least, static_cast<double>(well[t]) / static_cast<double>(requests[t]));
  }
  return least;
}

base::Result<IdealService> serve_ideally(const model::Scenario& scenario, const model::Trace& trace,
                                         const std::vector<RequestWork>& work, const WorkloadOptions& options,
                                         IdealServer server, const BusyWindow& window) {
  const auto order = policy::find_queue_order(scenario.cluster.prefill.order);
  if (!order) return tl::unexpected<base::Error>(order.error());
  auto workload = Workload::make(trace, options);
  if (!workload) return tl::unexpected<base::Error>(workload.error());
  return Server(scenario, work, std::move(*workload), **order, server, window).run();
}

base::Result<double> ideal_capacity(const model::Scenario& scenario, const model::Trace& trace,
                                    const std::vector<RequestWork>& work, WorkloadOptions workload,
                                    const CapacityOptions& options, IdealServer server) {
  return search_rate(options, [&](double rate) -> base::Result<bool> {
    workload.rate = rate;
    const auto served = serve_ideally(scenario, trace, work, workload, server);
    if (!served) return tl::unexpected<base::Error>(served.error());
    return served->share_least() >= options.share;
  });
}

}  // namespace trimtab::sim
