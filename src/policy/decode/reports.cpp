// How a rank's report mends the ledger. What the rank knew at the report's instant is exactly what was
// confirmed (by a token of it, or by an earlier report) until then and had not ended before.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "policy/decode/ledger.h"

namespace trimtab::policy {

void DecodeLedger::report(const DecodeReport& report) {
  const auto found = slots_.find(report.rank);
  if (found == slots_.end()) return;  // a late word of a rank that is gone
  Rank& rank = ranks_[found->second];
  if (report.as_of < rank.reported_as_of) return;
  rank.reported_as_of = report.as_of;
  std::erase_if(rank.ended, [&](const Ended& ended) { return ended.ended_at <= report.as_of; });
  if (report.listed) {
    apply_listed(rank, report);
    refresh(rank);
  } else {
    // Mostly the rank says what was believed: all that came before has been entered already.
    const auto before = std::pair(rank.correction_running, rank.correction_kv);
    apply_sums(rank, report);
    if (std::pair(rank.correction_running, rank.correction_kv) != before) refresh(rank);
  }
  if (!rank.expires && (rank.correction_running != 0 || rank.correction_kv != 0)) {
    rank.expires = true;
    expiries_.emplace_back(report.as_of + report_lifetime_, rank.id);
  }
}

void DecodeLedger::expire(Nanos now) {
  while (!expiries_.empty() && expiries_.front().first <= now) {
    Rank& rank = rank_of(expiries_.front().second);
    expiries_.pop_front();
    const Nanos due = rank.reported_as_of + report_lifetime_;
    if (due > now) {  // a younger report came meanwhile
      expiries_.emplace_back(due, rank.id);
      continue;
    }
    rank.expires = false;
    rank.correction_running = rank.correction_kv = 0;
    refresh(rank);
  }
}

/// With the list, nothing is guessed: ends that were missed are made up for, missed tokens added, and what
/// the placer does not know is the load of others.
void DecodeLedger::apply_listed(Rank& rank, const DecodeReport& report) {
  std::vector<DecodeReport::Running> listed = report.requests;
  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  std::sort(listed.begin(), listed.end(), by_id);
  const auto is_listed = [&](RequestId id) {
    return std::binary_search(listed.begin(), listed.end(), DecodeReport::Running{id, {}}, by_id);
  };
  for (std::size_t i = rank.requests.size(); i > 0; --i) {
    Request& request = requests_.at(rank.requests[i - 1]);
    if (request.confirmed_at > report.as_of || is_listed(request.id)) continue;
    ++ends_missed_;
    release(request);
  }
  rank.correction_running = rank.correction_kv = 0;
  for (const DecodeReport::Running& running : listed) {
    const auto known = requests_.find(running.id);
    if (known != requests_.end() && &ranks_[known->second.rank_slot] == &rank) {
      Request& request = known->second;
      request.confirmed_at = std::min(request.confirmed_at, report.as_of);
      // KV only grows, so the larger figure is the younger one.
      if (const std::int64_t missed = running.tokens.value - request.tokens.value; missed > 0)
        grew(running.id, missed, report.as_of);
      continue;
    }
    const bool has_ended = std::any_of(rank.ended.begin(), rank.ended.end(),
                                       [&](const Ended& ended) { return ended.id == running.id; });
    if (has_ended) continue;
    rank.correction_running += 1;
    rank.correction_kv += running.tokens.value;
  }
}

/// From sums alone the difference is the correction. Tokens that streamed after the report's instant make the
/// own part a little too large, hence the correction too small, by less than a step's tokens per step of age.
void DecodeLedger::apply_sums(Rank& rank, const DecodeReport& report) {
  std::int64_t running = 0, kv = 0;
  for (const RequestId id : rank.requests) {
    const Request& request = requests_.at(id);
    if (request.confirmed_at > report.as_of) continue;
    running += 1;
    kv += request.tokens.value;
  }
  for (const Ended& ended : rank.ended) {
    if (ended.confirmed_at > report.as_of) continue;
    running += 1;
    kv += ended.tokens;
  }
  rank.correction_running = report.running - running;
  rank.correction_kv = report.kv.value - kv;
}

}  // namespace trimtab::policy
