#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/prng.h"

namespace trimtab::engine {

namespace {

struct Candidate {
  double weight = 0;
  std::int32_t token = 0;
  bool operator<(const Candidate& other) const {  // of a heap whose top is the likeliest
    return weight != other.weight ? weight < other.weight : token > other.token;
  }
};

std::int32_t most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i)
    if (logits[i] > logits[best]) best = i;
  return static_cast<std::int32_t>(best);
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const model::Sampling& sampling, std::uint64_t position) {
  TRIMTAB_CHECK(!logits.empty());
  const std::int32_t likeliest = most_likely(logits);
  if (!(sampling.temperature > 0.0F)) return likeliest;
  const double top = logits[static_cast<std::size_t>(likeliest)];
  const double temperature = sampling.temperature;
  std::vector<Candidate> heap(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    heap[i] = {std::exp((static_cast<double>(logits[i]) - top) / temperature), static_cast<std::int32_t>(i)};
    total += heap[i].weight;
  }
  std::make_heap(heap.begin(), heap.end());
  // The nucleus: the fewest tokens, likeliest first, whose share reaches top_p; at least one.
  const double wanted = std::clamp(static_cast<double>(sampling.top_p), 0.0, 1.0) * total;
  std::vector<Candidate> nucleus;
  double mass = 0;
  while (!heap.empty() && (nucleus.empty() || mass < wanted)) {
    std::pop_heap(heap.begin(), heap.end());
    nucleus.push_back(heap.back());
    heap.pop_back();
    mass += nucleus.back().weight;
  }
  double left = base::Prng(sampling.seed, position).uniform() * mass;
  for (const Candidate& candidate : nucleus) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return nucleus.back().token;
}

}  // namespace trimtab::engine
