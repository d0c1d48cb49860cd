#pragma once

#include <array>
#include <cstdint>

#include "policy/eviction/odds.h"
#include "policy/eviction/policy.h"

namespace trimtab::eviction {

constexpr std::uint32_t kPaces = 16;

/// What is known of a run when its next use is forecast, in the buckets of the functions below.
struct Traits {
  std::uint8_t uses = 0;      // of its blocks before this request
  std::uint8_t gap = 0;       // since their use before; 0: none
  std::uint8_t children = 0;  // different continuations of its end
  bool end = false;           // the last block of the prompt, which is partial
  bool branch = false;        // a request went another way
  // Of the request:
  std::uint8_t turn = 0;    // uses of the last block that was known; 0 behind a prefix that strangers share
  std::uint8_t since = 0;   // its gap
  std::uint8_t pace = 0;    // running mean of the conversation's gaps, below kPaces
  std::uint8_t added = 0;   // blocks behind the known ones
  std::uint8_t prompt = 0;  // blocks
  std::uint8_t answer = 0;  // its tokens; 0: it is not whole yet
  std::uint8_t answer_before = 0;
};

std::uint8_t uses_bucket(std::uint32_t uses);
std::uint8_t gap_bucket(Nanos gap);  // below 0: there was no use before
std::uint8_t children_bucket(std::uint32_t children);
std::uint8_t added_bucket(std::int64_t blocks);
std::uint8_t prompt_bucket(std::int64_t blocks);
std::uint8_t answer_bucket(std::int64_t tokens);  // at least 1

Features features_of(const Traits& traits);
/// Rows of weights that features name, all together.
std::uint32_t feature_rows();

}  // namespace trimtab::eviction
