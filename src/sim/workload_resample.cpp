#include "sim/workload_resample.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "base/prng.h"
#include "sim/workload.h"

namespace trimtab::sim {
namespace {

/// Sorted starts over [0, span).
std::vector<Nanos> drawn_starts(std::size_t count, Nanos span, ResampleOptions::Arrivals arrivals,
                                base::Prng& prng) {
  std::vector<Nanos> starts;
  for (std::size_t i = 0; i < count; ++i) {
    const double at = arrivals == ResampleOptions::Arrivals::kPoisson
                          ? prng.uniform()
                          : (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    starts.push_back(Nanos{static_cast<std::int64_t>(at * static_cast<double>(span.value))});
  }
  std::ranges::sort(starts);
  return starts;
}

/// The requests of each conversation, in the order of the trace.
class Conversations {
 public:
  explicit Conversations(const model::Trace& trace)
      : begins_(trace.conversations + 1), requests_(trace.requests.size()) {
    for (const model::TraceRequest& request : trace.requests) ++begins_[request.conversation + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    std::vector<std::uint32_t> next = begins_;
    for (std::uint32_t i = 0; i < trace.requests.size(); ++i)
      requests_[next[trace.requests[i].conversation]++] = i;
  }
  std::span<const std::uint32_t> members(std::uint32_t conversation) const {
    const std::uint32_t begin = begins_[conversation];
    return std::span(requests_).subspan(begin, begins_[conversation + 1] - begin);
  }

 private:
  std::vector<std::uint32_t> begins_, requests_;
};

}  // namespace

base::Result<model::Trace> resample(const model::Trace& trace, const ResampleOptions& options) {
  const Starts recorded = starts_of(trace, options.start_span);
  if (recorded.request.empty())
    return base::fail(base::Code::kInvalidArgument, "the trace has no request to resample", "workload");
  const Conversations conversations(trace);
  std::vector<std::uint32_t> order(trace.conversations);
  std::iota(order.begin(), order.end(), 0U);
  std::erase_if(order, [&](std::uint32_t c) { return conversations.members(c).empty(); });
  base::Prng order_prng(options.seed, 0), starts_prng(options.seed, 1);
  order_prng.shuffle(std::span(order));
  const auto starts = drawn_starts(order.size(), recorded.span, options.arrivals, starts_prng);
  model::Trace out;
  out.name = trace.name;
  out.closed_loop = trace.closed_loop;
  out.block_tokens = trace.block_tokens;
  out.span = recorded.span;
  out.runs = trace.runs;
  out.images = trace.images;
  out.notes = trace.notes;
  out.requests.reserve(trace.requests.size());
  for (std::size_t c = 0; c < order.size(); ++c) {
    const auto members = conversations.members(order[c]);
    const Nanos first = trace.requests[members.front()].arrival;
    for (const std::uint32_t i : members) {
      model::TraceRequest request = trace.requests[i];
      request.arrival = starts[c] + (request.arrival - first);
      request.conversation = out.conversations;
      out.requests.push_back(request);
    }
    ++out.conversations;
  }
  if (!out.closed_loop) std::ranges::stable_sort(out.requests, {}, &model::TraceRequest::arrival);
  return out;
}

}  // namespace trimtab::sim
