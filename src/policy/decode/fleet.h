#pragma once

#include <cstdint>
#include <limits>

#include "policy/decode/ledger.h"

/// The placers' questions over ranks of mixed kinds. Loads are compared divided by speed: a rank of half the
/// speed is as loaded with half the work (request study, 1.5: 7 to 11 points where hardware is mixed).
namespace trimtab::policy {

inline constexpr std::int64_t kNoLine = std::numeric_limits<std::int64_t>::max();

/// `line`: KV, the request included, that a rank of nominal speed may reach; kNoLine: any. Fewest running,
/// then least KV, then id.
RankIndex::Best fewest_running(const DecodeLedger::Group& group, TokenCount tokens,
                               std::int64_t line = kNoLine);
/// Least KV, then fewest running, then id.
RankIndex::Best least_kv(const DecodeLedger::Group& group, TokenCount tokens);
std::int64_t count_fitting(const DecodeLedger::Group& group, TokenCount tokens, std::int64_t line = kNoLine);

/// Writes a choice down and returns its rank.
std::optional<RankId> settle(const RankIndex::Best& best, DecodeRule rule, DecodeReason& reason);
/// DualPath's choice inside a group whose ranks hold or are to get `sum` KV tokens together: the line is
/// `relax_percent` of the mean; at or under it the fewest running, else the least KV.
std::optional<RankId> under_relaxed_mean(const DecodeLedger::Group& group, TokenCount tokens,
                                         std::int64_t sum, std::int64_t relax_percent, DecodeReason& reason);

}  // namespace trimtab::policy
