#include <fmt/format.h>

#include "base/check.h"
#include "base/prng.h"
#include "experts_eval/weighted_rolling.h"

namespace trimtab::experts_eval {
namespace {

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_eval");
}

struct Request {
  std::int32_t text = 0, window = 0, token = 0;
};

base::Status check_texts(std::span<const RoutedText> texts, std::int32_t layer, std::int32_t experts) {
  if (texts.empty()) return bad("no routed text: give at least one");
  for (const RoutedText& text : texts) {
    if (text.ids == nullptr || text.windows < 1 || text.tokens < 1 || text.layers < 1 || text.top_k < 1) {
      return bad(fmt::format("routed text of {} windows, {} tokens, {} layers, top {}: each is at least 1",
                             text.windows, text.tokens, text.layers, text.top_k));
    }
    if (layer < 0 || layer >= text.layers) {
      return bad(fmt::format("layer {} of routed text with {} layers", layer, text.layers));
    }
    const std::size_t choices =
        index(text.windows) * index(text.tokens) * index(text.layers) * index(text.top_k);
    for (std::size_t i = 0; i < choices; ++i) {
      if (text.ids[i] >= experts) {
        return bad(fmt::format("routed text names expert {}, which is not one of 0 to {}", text.ids[i],
                               experts - 1));
      }
    }
  }
  return {};
}

}  // namespace

RankedLoads::RankedLoads(std::int32_t steps, std::int32_t experts, std::int32_t ranks)
    : steps_(steps), experts_(experts), ranks_(ranks) {
  TRIMTAB_CHECK(steps >= 0 && experts > 0 && ranks > 0);
  counts_.assign(index(steps) * index(experts), 0);
  by_rank_.assign(counts_.size() * index(ranks), 0);
}

RankedLoads RankedLoads::spread(const std::int32_t* first, std::int32_t steps, std::int32_t experts,
                                std::ptrdiff_t step_stride, std::int32_t ranks, std::uint64_t seed) {
  RankedLoads loads(steps, experts, ranks);
  base::Prng prng(seed);
  for (std::int32_t step = 0; step < steps; ++step) {
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      const std::int32_t tokens = first[step * step_stride + expert];
      for (std::int32_t i = 0; i < tokens; ++i) {
        loads.add(step, expert, static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(ranks))), 1);
      }
    }
  }
  return loads;
}

void RankedLoads::add(std::int32_t step, std::int32_t expert, std::int32_t rank, std::int32_t tokens) {
  const std::size_t row = index(step) * index(experts_) + index(expert);
  counts_[row] += tokens;
  by_rank_[row * index(ranks_) + index(rank)] += tokens;
}

std::span<const std::int32_t> RankedLoads::counts(std::int32_t step) const {
  return {counts_.data() + index(step) * index(experts_), index(experts_)};
}

std::span<const std::int32_t> RankedLoads::by_rank(std::int32_t step, std::int32_t expert) const {
  return {by_rank_.data() + (index(step) * index(experts_) + index(expert)) * index(ranks_), index(ranks_)};
}

base::Result<RankedLoads> serve_mix(std::span<const RoutedText> texts, std::int32_t layer,
                                    std::int32_t experts, std::int32_t ranks, const ServedMix& mix) {
  if (experts < 1 || ranks < 1 || mix.requests < 1 || mix.steps < 1 || mix.shift_steps < 1) {
    return bad(
        fmt::format("{} experts, {} ranks, {} requests, {} steps, a shift every {}: each is at least 1",
                    experts, ranks, mix.requests, mix.steps, mix.shift_steps));
  }
  TRIMTAB_TRY(check_texts(texts, layer, experts));
  base::Prng prng(mix.seed);
  const auto draw = [&](std::int32_t text) {
    return static_cast<std::int32_t>(prng.below(index(texts[index(text)].windows)));
  };
  // Requests are under way when it starts, each somewhere in its window.
  std::vector<Request> requests(index(mix.requests));
  for (Request& request : requests) {
    request.window = draw(0);
    request.token = static_cast<std::int32_t>(prng.below(index(texts[0].tokens)));
  }
  RankedLoads loads(mix.steps, experts, ranks);
  for (std::int32_t step = 0; step < mix.steps; ++step) {
    const auto now = static_cast<std::int32_t>(index(step / mix.shift_steps) % texts.size());
    for (std::int32_t r = 0; r < mix.requests; ++r) {
      Request& request = requests[index(r)];
      if (request.token == texts[index(request.text)].tokens) request = {now, draw(now), 0};
      const RoutedText& text = texts[index(request.text)];
      const std::size_t token = index(request.window) * index(text.tokens) + index(request.token++);
      const std::uint8_t* ids = text.ids + (token * index(text.layers) + index(layer)) * index(text.top_k);
      const auto rank = static_cast<std::int32_t>(static_cast<std::int64_t>(r) * ranks / mix.requests);
      for (std::int32_t k = 0; k < text.top_k; ++k) loads.add(step, ids[k], rank, 1);
    }
  }
  return loads;
}

}  // namespace trimtab::experts_eval
