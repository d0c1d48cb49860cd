#pragma once

#include "base/strong.h"

namespace trimtab::base {

using Nanos = Quantity<struct NanosTag>;  // time: an instant of a `Clock`, or a span; also the compute quota
using Bytes = Quantity<struct BytesTag>;
using TokenCount = Quantity<struct TokenCountTag>;
using BlockCount = Quantity<struct BlockCountTag>;  // KV blocks of `kBlockTokens` tokens

constexpr Nanos operator""_ns(unsigned long long v) { return Nanos{static_cast<std::int64_t>(v)}; }
constexpr Nanos operator""_us(unsigned long long v) { return Nanos{static_cast<std::int64_t>(v) * 1'000}; }
constexpr Nanos operator""_ms(unsigned long long v) {
  return Nanos{static_cast<std::int64_t>(v) * 1'000'000};
}
constexpr Nanos operator""_s(unsigned long long v) {
  return Nanos{static_cast<std::int64_t>(v) * 1'000'000'000};
}

constexpr double to_seconds(Nanos span) { return static_cast<double>(span.value) * 1e-9; }
constexpr double to_millis(Nanos span) { return static_cast<double>(span.value) * 1e-6; }

/// The longest span; used as "no deadline" and "no limit".
constexpr Nanos kForever{INT64_MAX};

}  // namespace trimtab::base
