#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trimtab::sim {
namespace {

Nanos scaled(Nanos span, double rate) {
  return Nanos{static_cast<std::int64_t>(static_cast<double>(span.value) / rate)};
}

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "workload");
}

}  // namespace

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
  return Workload(trace, options);
}

Workload::Workload(const model::Trace& trace, const WorkloadOptions& options)
    : trace_(&trace), options_(options) {
  for (std::uint32_t i = 0; i < trace.requests.size(); ++i) {
    const model::TraceRequest& request = trace.requests[i];
    if (!trace.closed_loop || request.turn == 0) starts_.push_back(i);
    if (!trace.closed_loop) span_ = std::max(span_, request.arrival);
  }
  span_ = trace.closed_loop ? options.start_span : scaled(span_ + Nanos{1'000'000'000}, options.rate);
}

std::int64_t Workload::requests_total() const {
  return std::min(options_.requests_max,
                  static_cast<std::int64_t>(trace_->requests.size()) * options_.repeats);
}

Nanos Workload::start_of(std::uint32_t index) const {
  const model::TraceRequest& request = trace_->requests[index];
  if (!trace_->closed_loop) return scaled(request.arrival, options_.rate);
  // A conversation's own agents start as far into it as recorded.
  const auto slot = static_cast<std::int64_t>(next_);
  return Nanos{static_cast<std::int64_t>(static_cast<double>(span_.value) / options_.rate *
                                         static_cast<double>(slot) / static_cast<double>(starts_.size()))};
}

std::optional<Workload::Item> Workload::next() {
  if (drawn_ >= options_.requests_max) return std::nullopt;
  if (next_ == starts_.size()) {
    if (repeat_ + 1 >= options_.repeats) return std::nullopt;
    ++repeat_;
    next_ = 0;
  }
  Item item{starts_[next_], repeat_, {}};
  const Nanos span = trace_->closed_loop ? scaled(span_, options_.rate) : span_;
  item.at = Nanos{static_cast<std::int64_t>(repeat_) * span.value} + start_of(item.request);
  ++next_;
  ++drawn_;
  return item;
}

std::optional<Workload::Item> Workload::follow(const Item& item, Nanos ended) const {
  if (!trace_->closed_loop) return std::nullopt;
  const std::uint32_t after = item.request + 1;
  if (after >= trace_->requests.size()) return std::nullopt;
  const model::TraceRequest& next = trace_->requests[after];
  if (next.conversation != trace_->requests[item.request].conversation) return std::nullopt;
  return Item{after, item.repeat, ended + next.think};
}

void Workload::runs(const Item& item, std::vector<model::BlockRun>& out) const {
  out.clear();
  for (const model::BlockRun& run : trace_->runs_of(request(item))) {
    out.push_back({run.first + (static_cast<std::uint64_t>(item.repeat) << 48U), run.count});
  }
}

}  // namespace trimtab::sim
