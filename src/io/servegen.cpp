#include "io/servegen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "io/trace_lines.h"

namespace trimtab::io {
namespace {

constexpr std::uint64_t kBorrowStream = 1ULL << 63U;  // apart from every (client, window)

/// Gamma(k, 1) by Marsaglia and Tsang (2000); shapes below 1 by the power of a uniform.
double gamma_draw(base::Prng& prng, double k) {
  if (k < 1) return gamma_draw(prng, k + 1) * std::pow(1 - prng.uniform(), 1 / k);
  const double d = k - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = prng.normal();
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v <= 0) continue;
    const double u = 1 - prng.uniform();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

/// Gaps of one window, in seconds.
class Gaps {
 public:
  explicit Gaps(const ServegenWindow& window)
      : shape_(window.shape),
        k_(window.k),
        scale_(shape_ == GapShape::kGamma     ? 1 / (window.rate * k_)
               : shape_ == GapShape::kWeibull ? 1 / (window.rate * std::tgamma(1 + 1 / k_))
                                              : 1 / window.rate) {}
  double next(base::Prng& prng) const {
    switch (shape_) {
      case GapShape::kGamma:
        return scale_ * gamma_draw(prng, k_);
      case GapShape::kWeibull:
        return scale_ * std::pow(prng.exponential(1), 1 / k_);
      default:
        return prng.exponential(scale_);
    }
  }
  /// What is left of the gap that a moment chosen without regard to the arrivals falls into: longer gaps are
  /// hit more often (drawn by length), anywhere in them.
  double first(base::Prng& prng) const {
    switch (shape_) {
      case GapShape::kGamma:
        return prng.uniform() * scale_ * gamma_draw(prng, k_ + 1);
      case GapShape::kWeibull:
        return prng.uniform() * scale_ * std::pow(gamma_draw(prng, 1 + 1 / k_), 1 / k_);
      default:
        return prng.exponential(scale_);
    }
  }

 private:
  GapShape shape_;
  double k_, scale_;
};

struct Slice {
  double begin_s = 0, end_s = 0;
};

double expected_requests(const ServegenClient& client, Slice slice) {
  double sum = 0;
  for (const ServegenWindow& window : client.windows) {
    const double length = std::min(window.end_s, slice.end_s) - std::max(window.begin_s, slice.begin_s);
    sum += std::max(length, 0.0) * window.rate;
  }
  return sum;
}

bool has_lengths(const ServegenClient& client) {
  return std::ranges::any_of(client.lengths, &ServegenLengths::known);
}

/// The tables in force at a time; where those are placeholders, the nearest that are not (the earlier of two
/// as near).
const ServegenLengths& lengths_at(const ServegenClient& client, double at_s) {
  const ServegenLengths* best = nullptr;
  double best_away = 0;
  for (std::size_t i = 0; i < client.lengths.size(); ++i) {
    const ServegenLengths& one = client.lengths[i];
    if (!one.known()) continue;
    const bool last = i + 1 == client.lengths.size();
    const double after = last ? 0 : std::max(at_s - client.lengths[i + 1].begin_s, 0.0);
    const double away = at_s < one.begin_s ? one.begin_s - at_s : after;
    if (best == nullptr || away < best_away) {
      best = &one;
      best_away = away;
    }
  }
  return *best;
}

model::TraceRequest draw_request(model::Trace& trace, const ServegenLengths& lengths, base::Prng& prng) {
  model::TraceRequest request;
  request.prompt_tokens = lengths.text.draw(prng);
  request.output_tokens = std::max<std::int64_t>(lengths.output.draw(prng), 1);
  request.images_begin = static_cast<std::uint32_t>(trace.images.size());
  const std::uint32_t images = lengths.images.empty() ? 0 : lengths.images.draw(prng);
  for (std::uint32_t i = 0; i < images; ++i) {
    const std::uint32_t tokens = lengths.image.draw(prng);
    if (tokens == 0) continue;  // a placeholder, not a picture
    trace.images.push_back({tokens, 0, 0});
    ++request.images_count;
    request.prompt_tokens += tokens;
  }
  request.prompt_tokens = std::max<std::int64_t>(request.prompt_tokens, 1);
  return request;
}

/// All of one client's requests in the slice. `number`: of the client among all, for its random numbers.
void generate_client(model::Trace& trace, const ServegenClient& client, const ServegenClient& source,
                     std::size_t number, Slice slice, std::uint64_t seed) {
  for (std::size_t w = 0; w < client.windows.size(); ++w) {
    const ServegenWindow& window = client.windows[w];
    if (window.rate <= 0 || window.end_s <= slice.begin_s || window.begin_s >= slice.end_s) continue;
    base::Prng gaps_prng(seed, base::mix(number, 2 * w)), lengths_prng(seed, base::mix(number, 2 * w + 1));
    const Gaps gaps(window);
    const double end = std::min(window.end_s, slice.end_s);
    for (double at = window.begin_s + gaps.first(gaps_prng); at < end; at += gaps.next(gaps_prng)) {
      model::TraceRequest request = draw_request(trace, lengths_at(source, at), lengths_prng);
      if (at < slice.begin_s || std::llround(at * 1e9) < std::llround(slice.begin_s * 1e9)) {
        trace.images.resize(request.images_begin);
        continue;
      }
      // Rounded as of the whole day, so that a slice has the same times to the nanosecond.
      request.arrival = base::Nanos{std::llround(at * 1e9) - std::llround(slice.begin_s * 1e9)};
      trace.requests.push_back(request);
    }
  }
}

base::Result<Slice> slice_of(const std::vector<ServegenClient>& clients, const ServegenOptions& options,
                             const std::string& name) {
  double begin = 0, end = 0;
  bool any = false;
  for (const ServegenClient& client : clients) {
    if (client.windows.empty()) continue;
    begin = any ? std::min(begin, client.windows.front().begin_s) : client.windows.front().begin_s;
    end = std::max(end, client.windows.back().end_s);
    any = true;
  }
  if (!any) return trace_error(name, 0, "no client has a window");
  const Slice slice{options.from_s, options.for_s > 0 ? options.from_s + options.for_s : end};
  if (!std::isfinite(slice.begin_s) || !std::isfinite(slice.end_s) || options.for_s < 0 ||
      slice.begin_s < begin || slice.begin_s >= end) {
    return trace_error(name, 0,
                       fmt::format("a slice from {:g} s for {:g} s: the models cover {:g} to {:g} s",
                                   options.from_s, options.for_s, begin, end));
  }
  return slice;
}

}  // namespace

base::Result<model::Trace> generate_servegen(const std::vector<ServegenClient>& clients,
                                             const ServegenOptions& options, const std::string& name) {
  if (options.clients < 0)
    return trace_error(name, 0, fmt::format("{} clients: 0 means all", options.clients));
  const auto slice = slice_of(clients, options, name);
  if (!slice) return tl::unexpected<base::Error>(slice.error());
  std::vector<double> expected(clients.size()), lenders(clients.size());
  for (std::size_t i = 0; i < clients.size(); ++i) {
    expected[i] = expected_requests(clients[i], *slice);
    // By the whole day: the lender must not change with the slice.
    if (has_lengths(clients[i])) lenders[i] = expected_requests(clients[i], {0, 1e18}) + 1e-9;
  }
  std::vector<std::size_t> order(clients.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t i) { return expected[i]; });
  if (options.clients > 0 && static_cast<std::size_t>(options.clients) < order.size())
    order.resize(static_cast<std::size_t>(options.clients));
  const double total = std::accumulate(order.begin(), order.end(), 0.0,
                                       [&](double sum, std::size_t i) { return sum + expected[i]; });
  if (total > static_cast<double>(kServegenRequestsMax)) {
    return trace_error(
        name, 0,
        fmt::format("{:.3g} requests are expected in the slice, {} can be held: take a shorter slice, "
                    "fewer clients, or repeat a smaller trace",
                    total, kServegenRequestsMax));
  }
  std::partial_sum(lenders.begin(), lenders.end(), lenders.begin());
  if (lenders.empty() || lenders.back() <= 0)
    return trace_error(name, 0, "no client has lengths (*-dataset.json)");
  model::Trace trace;
  trace.name = name;
  std::int64_t borrowed = 0;
  std::ranges::sort(order);
  for (const std::size_t i : order) {
    std::size_t source = i;
    if (!has_lengths(clients[i])) {
      base::Prng prng(options.seed, kBorrowStream | i);
      source = static_cast<std::size_t>(std::ranges::upper_bound(lenders, prng.uniform() * lenders.back()) -
                                        lenders.begin());
      source = std::min(source, clients.size() - 1);
      borrowed += expected[i] > 0 ? 1 : 0;
    }
    generate_client(trace, clients[i], clients[source], i, *slice, options.seed);
  }
  for (const ServegenClient& client : clients)
    trace.notes.insert(trace.notes.end(), client.notes.begin(), client.notes.end());
  if (borrowed > 0)
    trace.notes.push_back(
        fmt::format("{}: {} clients have no lengths and borrow those of others", name, borrowed));
  std::ranges::stable_sort(trace.requests, {}, &model::TraceRequest::arrival);
  if (static_cast<std::int64_t>(trace.requests.size()) > options.requests_max)
    trace.requests.resize(static_cast<std::size_t>(std::max<std::int64_t>(options.requests_max, 0)));
  for (model::TraceRequest& request : trace.requests) request.conversation = trace.conversations++;
  return trace;
}

}  // namespace trimtab::io
