#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/workload_stationary.h"

namespace trimtab::sim {
namespace {

constexpr std::int64_t kContentsMax =
    65'535;                            // repeats of a trace that 16 bits above its block ids tell apart
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
  if (options.repeats < 1 || options.repeats > kContentsMax) {
    return bad(fmt::format("{} repeats of the trace: use 1 to 65535", options.repeats));
  }
  if (options.requests_max < 1)
    return bad(fmt::format("at most {} requests: nothing to simulate", options.requests_max));
  if (options.start_span.value < 0) return bad("conversations cannot start over a negative span");
  if (trace.requests.empty()) return bad("the trace has no request");
  if (options.stationary && !trace.closed_loop) {
    return bad(
        fmt::format("{} is an open loop, whose arrivals depend on nothing: resample it to make it stationary",
                    trace.name));
  }
  if (options.answer_token.value < 0) return bad("a token of an answer cannot take negative time");
  Workload workload(trace, options);
  const Nanos last = workload.starts_.at.empty() ? Nanos{} : workload.starts_.at.back();
  const double recorded_ns =
      static_cast<double>(options.repeats - 1) * static_cast<double>(workload.starts_.span.value) +
      static_cast<double>(last.value);
  if (recorded_ns > kSpanMaxNs || recorded_ns / workload.options_.rate > kSpanMaxNs) {
    return bad(
        fmt::format("at a rate of {:g}, repeated {} times, the last request would arrive after {:.3g} "
                    "years: 100 can be simulated",
                    options.rate, options.repeats, recorded_ns / workload.options_.rate / 3.156e16));
  }
  if (const std::int64_t contents = options.repeats * workload.laps_total_; contents > kContentsMax) {
    return bad(fmt::format(
        "conversations last {} periods of {:.6g} s, and {} repeats of that are {} contents to tell apart: at "
        "most {} are possible; use a longer span, a lower rate or fewer repeats",
        workload.laps_total_, base::to_seconds(workload.starts_.span), options.repeats, contents,
        kContentsMax));
  }
  return workload;
}

Workload::Workload(const model::Trace& trace, const WorkloadOptions& options)
    : trace_(&trace), options_(options), starts_(starts_of(trace, options.start_span)) {
  if (!options.stationary || !trace.closed_loop) return;
  Folded folded = fold(trace, starts_, options.rate, options.answer_token);
  starts_ = std::move(folded.starts);
  laps_ = std::move(folded.laps);
  laps_total_ = folded.laps_total;
  under_way_ = std::move(folded.under_way);
  options_.rate = 1;  // it is in the period
}

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
  const std::uint32_t request = starts_.request[next_];
  const Item item{request, repeat_, scaled(before + starts_.at[next_], options_.rate),
                  laps_.empty() ? 0 : laps_[request]};
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
  if (!laps_.empty() && laps_[after] != item.lap) return std::nullopt;  // another piece
  ++drawn_;
  return Item{after, item.repeat, ended + next.think, item.lap};
}

void Workload::runs(const Item& item, std::vector<model::BlockRun>& out) const {
  out.clear();
  const std::uint64_t contents = static_cast<std::uint64_t>(item.repeat) * laps_total_ + item.lap;
  for (const model::BlockRun& run : trace_->runs_of(request(item))) {
    out.push_back({run.first + (contents << 48U), run.count});
  }
}

}  // namespace trimtab::sim
