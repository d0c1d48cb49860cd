#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trimtab::sim {
namespace {

constexpr double kSpanMaxNs = 3.2e18;  // 100 years, with room for what happens after the last arrival

Nanos scaled(Nanos span, double rate) {
  return Nanos{static_cast<std::int64_t>(static_cast<double>(span.value) / rate)};
}

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "workload");
}

}  // namespace

Starts starts_of(const model::Trace& trace, Nanos start_span) {
  Starts starts;
  for (std::uint32_t i = 0; i < trace.requests.size(); ++i) {
    if (!trace.closed_loop || trace.requests[i].turn == 0) starts.request.push_back(i);
  }
  const bool spreads = trace.closed_loop && trace.span.value == 0;
  if (spreads) {
    const auto count = static_cast<double>(starts.request.size());
    for (std::size_t i = 0; i < starts.request.size(); ++i)
      starts.at.push_back(scaled(start_span, count / static_cast<double>(i)));
    starts.span = start_span;
    return starts;
  }
  std::ranges::stable_sort(starts.request, {}, [&](std::uint32_t i) { return trace.requests[i].arrival; });
  for (const std::uint32_t i : starts.request) starts.at.push_back(trace.requests[i].arrival);
  // The gap to a next request was not recorded: a second stands for it.
  const Nanos last = starts.at.empty() ? Nanos{} : starts.at.back();
  starts.span = trace.span > last ? trace.span : last + Nanos{1'000'000'000};
  return starts;
}

base::Result<Workload> Workload::make(const model::Trace& trace, const WorkloadOptions& options) {
  if (!(options.rate > 0) || !std::isfinite(options.rate)) {
    return bad(
        fmt::format("a rate of {}: arrivals come so many times as fast as recorded; use a positive number",
                    options.rate));
  }
  if (options.repeats < 1 || options.repeats > 65'535) {
    return bad(fmt::format("{} repeats of the trace: use 1 to 65535", options.repeats));
  }
  if (options.requests_max < 1)
    return bad(fmt::format("at most {} requests: nothing to simulate", options.requests_max));
  if (options.start_span.value < 0) return bad("conversations cannot start over a negative span");
  if (trace.requests.empty()) return bad("the trace has no request");
  Workload workload(trace, options);
  const Nanos last = workload.starts_.at.empty() ? Nanos{} : workload.starts_.at.back();
  const double recorded_ns =
      static_cast<double>(options.repeats - 1) * static_cast<double>(workload.starts_.span.value) +
      static_cast<double>(last.value);
  if (recorded_ns > kSpanMaxNs || recorded_ns / options.rate > kSpanMaxNs) {
    return bad(
        fmt::format("at a rate of {:g}, repeated {} times, the last request would arrive after {:.3g} "
                    "years: 100 can be simulated",
                    options.rate, options.repeats, recorded_ns / options.rate / 3.156e16));
  }
  return workload;
}

Workload::Workload(const model::Trace& trace, const WorkloadOptions& options)
    : trace_(&trace), options_(options), starts_(starts_of(trace, options.start_span)) {}

std::int64_t Workload::requests_total() const {
  return std::min(options_.requests_max,
                  static_cast<std::int64_t>(trace_->requests.size()) * options_.repeats);
}

std::optional<Workload::Item> Workload::next() {
  if (drawn_ >= options_.requests_max) return std::nullopt;
  if (next_ == starts_.request.size()) {
    if (repeat_ + 1 >= options_.repeats) return std::nullopt;
    ++repeat_;
    next_ = 0;
  }
  const Nanos before{static_cast<std::int64_t>(repeat_) * starts_.span.value};
  const Item item{starts_.request[next_], repeat_, scaled(before + starts_.at[next_], options_.rate)};
  ++next_;
  ++drawn_;
  return item;
}

std::optional<Workload::Item> Workload::follow(const Item& item, Nanos ended) {
  if (!trace_->closed_loop || drawn_ >= options_.requests_max) return std::nullopt;
  const std::uint32_t after = item.request + 1;
  if (after >= trace_->requests.size()) return std::nullopt;
  const model::TraceRequest& next = trace_->requests[after];
  if (next.conversation != trace_->requests[item.request].conversation) return std::nullopt;
  ++drawn_;
  return Item{after, item.repeat, ended + next.think};
}

void Workload::runs(const Item& item, std::vector<model::BlockRun>& out) const {
  out.clear();
  for (const model::BlockRun& run : trace_->runs_of(request(item))) {
    out.push_back({run.first + (static_cast<std::uint64_t>(item.repeat) << 48U), run.count});
  }
}

}  // namespace trimtab::sim
