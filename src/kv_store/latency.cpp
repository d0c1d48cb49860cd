#include "kv_store/latency.h"

#include <algorithm>
#include <bit>

namespace trimtab::kv_store {

std::uint32_t Latency::bucket(std::int64_t span_ns) {
  // Octave and the two bits below its top one; spans below 4 ns have a bucket each.
  const auto span = static_cast<std::uint64_t>(std::max<std::int64_t>(span_ns, 0));
  if (span < 4) return static_cast<std::uint32_t>(span);
  const auto octave = static_cast<std::uint32_t>(std::bit_width(span)) - 1;
  const auto quarter = static_cast<std::uint32_t>(span >> (octave - 2) & 3);
  return std::min(kBuckets - 1, (octave - 1) * 4 + quarter);
}

std::int64_t Latency::upper_edge(std::uint32_t bucket) {
  if (bucket < 4) return bucket;
  const std::uint32_t octave = bucket / 4 + 1;
  return (std::int64_t{bucket % 4 + 5} << (octave - 2)) - 1;
}

void Latency::add(base::Nanos span) {
  ++counts_[bucket(span.value)];
  if (++total_ < kMemory) return;
  total_ = 0;
  for (std::uint16_t& count : counts_) total_ += count /= 2;
}

base::Nanos Latency::quantile(std::uint32_t per_mille, base::Nanos otherwise) const {
  if (total_ < kEnough) return otherwise;
  const std::uint64_t rank = (std::uint64_t{total_} * per_mille + 999) / 1'000;
  std::uint64_t below = 0;
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    below += counts_[b];
    if (below >= rank) return base::Nanos{upper_edge(b)};
  }
  return otherwise;
}

}  // namespace trimtab::kv_store
