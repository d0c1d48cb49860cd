#pragma once

#include <cstdint>
#include <vector>

#include "policy/eviction/hazard.h"
#include "policy/eviction/policy.h"

namespace trimtab::eviction {

constexpr std::uint32_t kCoarseKinds = 8, kFineOfCoarse = 64, kFineKinds = kCoarseKinds * kFineOfCoarse;

/// From this many different continuations on a block belongs to a prefix that strangers share.
constexpr std::uint32_t kSharedFrom = 8;

/// What is known of a block when it is used.
struct Traits {
  std::uint32_t position = 0;
  std::uint32_t uses = 0;  // before this one
  Nanos gap{-1};           // since the one before; below 0: this is the first
  /// Of the conversation that it was stored in: how often the last block that was there had been hit; 0: a
  /// fresh prompt, or one behind a prefix that strangers share.
  std::uint32_t turn = 0;
};

/// The kind that tells best, of those tried (docs/policies/eviction.md), how soon a block is used again: the
/// partial end of a prompt; new in a fresh prompt; new in a conversation that goes on, by turn; hit once,
/// twice, a few times, often, each by the time since the use before. And by how many blocks the request
/// added: who adds a book asks less often again than who adds a sentence.
Kind kind_of(const Traits& traits, const Access& access);
/// Of a branch that a request has left behind.
Kind kind_of_branch(std::uint32_t uses);
std::vector<std::uint8_t> coarse_of_kinds();

}  // namespace trimtab::eviction
