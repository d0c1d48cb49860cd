#include "sim/workload_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/workload.h"

namespace trimtab::sim {
namespace {

constexpr std::int64_t kBlockTokensLeast = 16;     // of the common block
constexpr std::uint64_t kBlocksMax = 1ULL << 47U;  // ids that repeats of the mix can still be told apart by
constexpr double kRunsMax = 65'535;                // of one trace in the mix

constexpr double kPartsMax = 100e6;  // block runs and images of the mix

std::uint32_t narrow(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, UINT32_MAX));
}

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "mix");
}

/// Gives the blocks of a trace small ids that keep neighbours together: ids of several traces fit side by
/// side.
class DenseBlocks {
 public:
  explicit DenseBlocks(const model::Trace& trace) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // first and last
    for (const model::BlockRun& run : trace.runs) {
      if (run.count > 0) ranges.emplace_back(run.first, run.first + (run.count - 1));
    }
    std::ranges::sort(ranges);
    for (const auto& [first, last] : ranges) {
      if (!parts_.empty() && first <= parts_.back().last) {
        parts_.back().last = std::max(parts_.back().last, last);
      } else {
        parts_.push_back({first, last, 0});
      }
    }
    for (Part& part : parts_) {
      part.dense = count_;
      count_ += part.last - part.first + 1;
    }
  }
  std::uint64_t of(std::uint64_t id) const {
    const auto after = std::ranges::upper_bound(parts_, id, {}, &Part::first);
    const Part& part = *(after - 1);
    return part.dense + (id - part.first);
  }
  std::uint64_t count() const { return count_; }

 private:
  struct Part {
    std::uint64_t first, last, dense;
  };
  std::vector<Part> parts_;
  std::uint64_t count_ = 0;
};

/// One trace's place in the mix.
struct Ingredient {
  const model::Trace* trace = nullptr;
  Starts starts;
  double rate = 0;                   // requests per ns, as recorded
  double stretch = 1;                // of its time
  double runs = 1;                   // how often it runs, the last time perhaps in part
  std::vector<std::uint32_t> turns;  // closed loop: requests of the conversation that begins with this one
};

/// How many requests follow each first turn, itself included.
std::vector<std::uint32_t> turns_of(const model::Trace& trace) {
  std::vector<std::uint32_t> turns(trace.requests.size(), 1);
  if (!trace.closed_loop) return turns;
  for (std::size_t i = trace.requests.size(); i-- > 1;) {
    if (trace.requests[i].conversation == trace.requests[i - 1].conversation) turns[i - 1] += turns[i];
  }
  return turns;
}

base::Result<std::vector<Ingredient>> ingredients_of(std::span<const model::Trace> traces,
                                                     const MixOptions& options) {
  std::vector<Ingredient> all;
  double rate = 0, weights = 0;
  for (const model::Trace& trace : traces) {
    if (trace.requests.empty()) return bad(fmt::format("the trace {} has no request", trace.name));
    Ingredient one{&trace, starts_of(trace, options.start_span), 0, 1, 1, turns_of(trace)};
    one.rate = static_cast<double>(trace.requests.size()) /
               static_cast<double>(std::max<std::int64_t>(one.starts.span.value, 1));
    rate += one.rate;
    all.push_back(std::move(one));
  }
  for (const double weight : options.weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      return bad(fmt::format("a share of {}: shares are positive", weight));
    weights += weight;
  }
  double longest = 0, requests = 0, parts = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!options.weights.empty()) all[i].stretch = all[i].rate / (options.weights[i] / weights * rate);
    longest = std::max(longest, static_cast<double>(all[i].starts.span.value) * all[i].stretch);
  }
  for (Ingredient& one : all) {
    one.runs = longest / (static_cast<double>(one.starts.span.value) * one.stretch);
    requests += one.runs * static_cast<double>(one.trace->requests.size());
    parts += one.runs * static_cast<double>(one.trace->runs.size() + one.trace->images.size());
    if (one.runs > kRunsMax || requests > static_cast<double>(kMixRequestsMax) || parts > kPartsMax) {
      return bad(fmt::format(
          "{} would run {:.0f} times beside the longest, which is more than can be held ({} requests "
          "with {} block runs): give it a smaller share, or cut the longest",
          one.trace->name, one.runs, kMixRequestsMax, kPartsMax));
    }
  }
  if (longest > 3e18) return bad("the mix would last more than 90 years: give the slow traces larger shares");
  return all;
}

/// The greatest common block of the traces that know any; 0 when none does.
base::Result<std::int64_t> common_block(std::span<const model::Trace> traces) {
  std::int64_t common = 0;
  std::string sizes;
  for (const model::Trace& trace : traces) {
    if (trace.block_tokens == 0) continue;
    common = std::gcd(common, trace.block_tokens);
    sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", trace.block_tokens);
  }
  if (common != 0 && common < kBlockTokensLeast)
    return bad(fmt::format("blocks of {} tokens have only {} in common: too small to keep", sizes, common));
  return common;
}

class Mixer {
 public:
  Mixer(std::int64_t block_tokens, bool closed) {
    mixed_.block_tokens = block_tokens;
    mixed_.closed_loop = closed;
  }

  void add(const Ingredient& one) {
    const model::Trace& trace = *one.trace;
    const DenseBlocks blocks(trace);
    const std::uint64_t cut =
        trace.block_tokens == 0 ? 1 : static_cast<std::uint64_t>(trace.block_tokens / mixed_.block_tokens);
    const auto span = static_cast<double>(one.starts.span.value);
    const double end = span * one.stretch * one.runs;
    for (double run = 0; run < one.runs; ++run) {
      const std::uint32_t conversations = mixed_.conversations;
      for (std::size_t s = 0; s < one.starts.request.size(); ++s) {
        const double at = (run * span + static_cast<double>(one.starts.at[s].value)) * one.stretch;
        if (at >= end) break;
        const std::uint32_t first = one.starts.request[s];
        for (std::uint32_t turn = 0; turn < one.turns[first]; ++turn) {
          model::TraceRequest request = trace.requests[first + turn];
          if (mixed_.closed_loop) request.turn = turn;
          // Later turns of a closed loop have no time of their own.
          if (turn == 0) request.arrival = Nanos{static_cast<std::int64_t>(at)};
          request.conversation =
              mixed_.closed_loop ? mixed_.conversations : conversations + request.conversation;
          copy_parts(trace, request, blocks, cut);
          mixed_.requests.push_back(request);
        }
        if (mixed_.closed_loop) ++mixed_.conversations;
      }
      if (!mixed_.closed_loop) mixed_.conversations += trace.conversations;
      base_ += blocks.count() * cut;
    }
    mixed_.span = std::max(mixed_.span, Nanos{static_cast<std::int64_t>(end)});
    mixed_.name += (mixed_.name.empty() ? "" : " + ") + trace.name;
    mixed_.notes.insert(mixed_.notes.end(), trace.notes.begin(), trace.notes.end());
  }

  std::uint64_t blocks() const { return base_; }
  model::Trace take() {
    if (!mixed_.closed_loop) std::ranges::stable_sort(mixed_.requests, {}, &model::TraceRequest::arrival);
    return std::move(mixed_);
  }

 private:
  void copy_parts(const model::Trace& trace, model::TraceRequest& request, const DenseBlocks& blocks,
                  std::uint64_t cut) {
    const auto runs = trace.runs_of(request);
    const auto images = trace.images_of(request);
    request.runs_begin = static_cast<std::uint32_t>(mixed_.runs.size());
    for (const model::BlockRun& run : runs) {
      if (run.count == 0) continue;
      mixed_.runs.push_back({base_ + blocks.of(run.first) * cut, narrow(run.count * cut)});
    }
    request.runs_count = static_cast<std::uint32_t>(mixed_.runs.size()) - request.runs_begin;
    request.images_begin = static_cast<std::uint32_t>(mixed_.images.size());
    mixed_.images.insert(mixed_.images.end(), images.begin(), images.end());
  }

  model::Trace mixed_;
  std::uint64_t base_ = 0;  // of the block ids of the run that is being added
};

}  // namespace

base::Result<model::Trace> mix(std::span<const model::Trace> traces, const MixOptions& options) {
  if (traces.empty()) return bad("there is no trace to mix");
  if (!options.weights.empty() && options.weights.size() != traces.size()) {
    return bad(fmt::format("{} shares for {} traces: give one for each, or none", options.weights.size(),
                           traces.size()));
  }
  const auto block = common_block(traces);
  if (!block) return tl::unexpected<base::Error>(block.error());
  const auto all = ingredients_of(traces, options);
  if (!all) return tl::unexpected<base::Error>(all.error());
  Mixer mixer(*block, std::ranges::any_of(traces, &model::Trace::closed_loop));
  for (const Ingredient& one : *all) {
    mixer.add(one);
    if (mixer.blocks() > kBlocksMax) return bad("the traces name more blocks than ids can tell apart");
  }
  return mixer.take();
}

}  // namespace trimtab::sim
