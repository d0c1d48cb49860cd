#include "policy/decode/ledger.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace trimtab::policy {
namespace {

constexpr std::size_t kEndedMax = 128;  // ends remembered per rank while no report comes
constexpr std::int64_t kTokensMax = std::int64_t{1} << 30;

std::int64_t blocks_of(std::int64_t tokens) {
  return (tokens + model::kBlockTokens - 1) / model::kBlockTokens;
}

}  // namespace

DecodeLedger::DecodeLedger(Scope scope, std::int64_t headroom_tokens, Nanos report_lifetime,
                           std::unique_ptr<Outlook> outlook)
    : scope_(scope),
      headroom_(headroom_tokens),
      report_lifetime_(report_lifetime),
      outlook_(std::move(outlook)) {}

DecodeLedger::Rank& DecodeLedger::rank_of(RankId rank) {
  const auto found = slots_.find(rank);
  TRIMTAB_CHECK(found != slots_.end(), "decode rank " + model::to_string(rank) + " is not known");
  return ranks_[found->second];
}

const DecodeLedger::Rank& DecodeLedger::rank_of(RankId rank) const {
  return const_cast<DecodeLedger*>(this)->rank_of(rank);
}

DecodeLedger::Group& DecodeLedger::group_of(RankId rank) {
  const model::EngineId engine = scope_ == Scope::kGroup ? rank.engine : model::EngineId{};
  auto at = std::lower_bound(groups_.begin(), groups_.end(), engine,
                             [](const Group& group, model::EngineId id) { return group.engine < id; });
  if (at == groups_.end() || at->engine != engine) {
    at = groups_.insert(at, Group{});
    at->engine = engine;
  }
  return *at;
}

void DecodeLedger::add_rank(RankId rank, DecodeCapacity capacity) {
  TRIMTAB_CHECK(!knows(rank), "decode rank " + model::to_string(rank) + " was added twice");
  TRIMTAB_CHECK(capacity.kv.value > 0 && capacity.kv.value < kTokensMax && capacity.max_running > 0 &&
                    capacity.max_running < 65'536 && capacity.speed_permille > 0 &&
                    capacity.speed_permille <= 100'000,
                "capacity of decode rank " + model::to_string(rank));
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(ranks_.size()));
    ranks_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_.emplace(rank, slot);
  ranks_[slot] = Rank{};
  ranks_[slot].id = rank;
  ranks_[slot].capacity = capacity;
  enter(ranks_[slot]);
}

std::vector<RequestId> DecodeLedger::remove_rank(RankId rank) {
  Rank& gone = rank_of(rank);
  leave(gone);
  if (gone.expires) std::erase_if(expiries_, [&](const auto& entry) { return entry.second == rank; });
  std::vector<RequestId> lost = std::move(gone.requests);
  std::sort(lost.begin(), lost.end());
  for (const RequestId id : lost) requests_.erase(id);
  free_slots_.push_back(slots_.at(rank));
  slots_.erase(rank);
  return lost;
}

void DecodeLedger::set_open(RankId rank, bool open) {
  Rank& changed = rank_of(rank);
  if (open) {
    enter(changed);
  } else {
    leave(changed);
  }
}

void DecodeLedger::enter(Rank& rank) {
  if (rank.open) return;
  rank.open = true;
  Group& group = group_of(rank.id);
  auto kind = std::find_if(group.kinds.begin(), group.kinds.end(),
                           [&](const auto& index) { return index->capacity() == rank.capacity; });
  if (kind == group.kinds.end()) {
    kind = group.kinds.insert(group.kinds.end(), std::make_unique<RankIndex>(rank.capacity, headroom_));
  }
  rank.index = kind->get();
  rank.index_slot = rank.index->add(rank.id, rank.believed_running, rank.believed_kv);
  for (Totals* totals : {&totals_, &group.totals}) {
    totals->kv += rank.believed_kv;
    totals->running += rank.believed_running;
    totals->ranks += 1;
    totals->speed_permille += rank.capacity.speed_permille;
  }
  open_ranks_.insert(std::lower_bound(open_ranks_.begin(), open_ranks_.end(), rank.id), rank.id);
  if (outlook_) refresh(rank);
}

void DecodeLedger::leave(Rank& rank) {
  if (!rank.open) return;
  rank.open = false;
  Group& group = group_of(rank.id);
  rank.index->remove(rank.index_slot);
  if (outlook_) outlook_->remove(rank.id);
  for (Totals* totals : {&totals_, &group.totals}) {
    totals->kv -= rank.believed_kv;
    totals->running -= rank.believed_running;
    totals->ranks -= 1;
    totals->speed_permille -= rank.capacity.speed_permille;
  }
  // Kinds and groups without ranks go, or a fleet that changes shape would leave a trail of empty ones.
  std::erase_if(group.kinds, [](const auto& index) { return index->empty(); });
  if (group.totals.ranks == 0) std::erase_if(groups_, [](const Group& g) { return g.totals.ranks == 0; });
  rank.index = nullptr;
  open_ranks_.erase(std::lower_bound(open_ranks_.begin(), open_ranks_.end(), rank.id));
}

void DecodeLedger::refresh(Rank& rank) {
  const std::int64_t running = std::max<std::int64_t>(0, rank.running + rank.correction_running);
  const std::int64_t kv = std::max<std::int64_t>(0, rank.kv + rank.correction_kv);
  if (rank.open) {
    Totals& group = group_of(rank.id).totals;
    for (Totals* totals : {&totals_, &group}) {
      totals->kv += kv - rank.believed_kv;
      totals->running += running - rank.believed_running;
    }
    rank.index->update(rank.index_slot, running, kv);
  }
  rank.believed_running = running;
  rank.believed_kv = kv;
  if (!outlook_ || !rank.open) return;
  const Expected foreign = outlook_->of_foreign(rank.correction_running, rank.correction_kv);
  const std::int64_t room =
      running < rank.capacity.max_running ? rank.capacity.kv.value - headroom_ * (running + 1) - kv : -1;
  outlook_->set(rank.id, {{rank.expected.running + foreign.running, rank.expected.kv + foreign.kv},
                          room,
                          running,
                          kv,
                          rank.capacity.speed_permille});
}

void DecodeLedger::expect(Request& request) {
  if (!outlook_) return;
  Expected& of_rank = ranks_[request.rank_slot].expected;
  const Expected now = outlook_->of(request.age_tokens(), request.tokens.value);
  of_rank.running += now.running - request.expected.running;
  of_rank.kv += now.kv - request.expected.kv;
  request.expected = now;
}

/// Everything that was computed from the survival table before it changed. Rare: once in hundreds of ends.
void DecodeLedger::expect_all() {
  for (const auto& [id, slot] : slots_) {
    Rank& rank = ranks_[slot];
    for (const RequestId request : rank.requests) expect(requests_.at(request));
    refresh(rank);
  }
}

void DecodeLedger::set_speed(RankId rank, std::int64_t speed_permille) {
  Rank& changed = rank_of(rank);
  TRIMTAB_CHECK(speed_permille > 0 && speed_permille <= 100'000,
                "speed of decode rank " + model::to_string(rank) + ": " + std::to_string(speed_permille));
  if (changed.capacity.speed_permille == speed_permille) return;
  const bool open = changed.open;
  leave(changed);
  changed.capacity.speed_permille = speed_permille;
  if (open) enter(changed);
}

void DecodeLedger::book(RequestId id, Rank& rank, TokenCount tokens, std::int32_t preemptions) {
  TRIMTAB_CHECK(tokens.value > 0 && tokens.value < kTokensMax,
                "KV of request " + std::to_string(id.value) + ": " + std::to_string(tokens.value));
  Request request;
  request.id = id;
  request.tokens = request.placed_tokens = tokens;
  request.preemptions = preemptions;
  request.rank_slot = static_cast<std::uint32_t>(&rank - ranks_.data());
  request.position = static_cast<std::uint32_t>(rank.requests.size());
  request.confirmed_at = base::kForever;
  const bool is_new = requests_.emplace(id, request).second;
  TRIMTAB_CHECK(is_new, "request " + std::to_string(id.value) + " has a decode place already");
  rank.requests.push_back(id);
  rank.running += 1;
  rank.kv += tokens.value;
  rank.blocks += blocks_of(tokens.value);
  if (outlook_) expect(requests_.at(id));
  refresh(rank);
}

void DecodeLedger::reserve(RequestId id, RankId rank, TokenCount tokens, Nanos /*now*/,
                           std::int32_t preemptions, bool returns) {
  book(id, rank_of(rank), tokens, preemptions);
  requests_.at(id).returns = returns;
}

void DecodeLedger::admitted(RequestId id, RankId rank, TokenCount tokens, Nanos now) {
  const auto found = requests_.find(id);
  if (found != requests_.end() && ranks_[found->second.rank_slot].id == rank) {
    // The reservation may have been made for fewer tokens than arrived.
    Rank& place = ranks_[found->second.rank_slot];
    Request& request = found->second;
    TRIMTAB_CHECK(!request.running, "request " + std::to_string(id.value) + " was admitted twice");
    place.kv += tokens.value - request.tokens.value;
    place.blocks += blocks_of(tokens.value) - blocks_of(request.tokens.value);
    request.placed_tokens = tokens - TokenCount{request.age_tokens()};
    request.tokens = tokens;
    expect(request);
    refresh(place);
  } else {
    // A reservation elsewhere is given up: the KV went to `rank`.
    if (found != requests_.end()) ended(id, now);
    book(id, rank_of(rank), tokens, 0);
  }
  Request& request = requests_.at(id);
  request.running = true;
  request.admitted_at = now;
}

void DecodeLedger::grew(RequestId id, std::int64_t n, Nanos now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  Rank& rank = ranks_[request.rank_slot];
  request.confirmed_at = std::min(request.confirmed_at, now);
  rank.blocks += blocks_of(request.tokens.value + n) - blocks_of(request.tokens.value);
  if (outlook_) outlook_->survival().streamed(request.age_tokens(), n);
  request.tokens += TokenCount{n};
  rank.kv += n;
  expect(request);
  refresh(rank);
}

void DecodeLedger::release(Request& request) {
  Rank& rank = ranks_[request.rank_slot];
  rank.running -= 1;
  rank.kv -= request.tokens.value;
  rank.blocks -= blocks_of(request.tokens.value);
  rank.expected.running -= request.expected.running;
  rank.expected.kv -= request.expected.kv;
  const RequestId last = rank.requests.back();
  rank.requests[request.position] = last;
  requests_.at(last).position = request.position;
  rank.requests.pop_back();
  const RequestId id = request.id;  // erase must not be given a part of what it destroys
  requests_.erase(id);
}

bool DecodeLedger::ended(RequestId id, Nanos now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  Request& request = found->second;
  Rank& rank = ranks_[request.rank_slot];
  remember_end(request, rank, now);
  // One that never ran here (a refused reservation, a cancelled one) says nothing about lengths.
  if (outlook_ && request.age_tokens() > 0 && (request.running || !request.returns))
    outlook_->survival().ended(request.age_tokens() - 1);
  release(request);
  refresh(rank);
  if (outlook_ && outlook_->survival().take_refreshed()) expect_all();
  return true;
}

/// A report that is still under way may count it; remember it until one is younger than its end.
void DecodeLedger::remember_end(const Request& request, Rank& rank, Nanos now) {
  if (request.confirmed_at == base::kForever) return;
  if (rank.ended.size() == kEndedMax) rank.ended.erase(rank.ended.begin());
  rank.ended.push_back({request.id, request.tokens.value, request.confirmed_at, now});
}

bool DecodeLedger::moved(RequestId id, RankId to, Nanos now) {
  Rank& target = rank_of(to);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  const Request before = found->second;
  Rank& source = ranks_[before.rank_slot];
  if (&source == &target) return true;
  remember_end(before, source, now);
  release(found->second);
  refresh(source);
  book(id, target, before.tokens, before.preemptions);
  // Its age goes with it.
  Request& request = requests_.at(id);
  request.placed_tokens = before.placed_tokens;
  request.running = before.running;
  request.admitted_at = before.admitted_at;
  expect(request);
  refresh(target);
  return true;
}

/// The rank still steps it and reports it: what was confirmed stays so.
bool DecodeLedger::leaves(RequestId id, RequestId alias) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  auto node = requests_.extract(found);
  node.key() = alias;
  Request& request = node.mapped();
  request.id = alias;
  request.running = false;                 // nobody moves it or lets it yield any more
  request.placed_tokens = request.tokens;  // its end here is not the end of an answer
  Rank& rank = ranks_[request.rank_slot];
  rank.requests[request.position] = alias;
  const bool is_new = requests_.insert(std::move(node)).inserted;
  TRIMTAB_CHECK(is_new, "the alias " + std::to_string(alias.value) + " is in use");
  expect(requests_.at(alias));
  refresh(rank);
  return true;
}

bool DecodeLedger::departs(RequestId id, RequestId alias, RankId to) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  const Request before = found->second;
  leaves(id, alias);
  Rank& target = rank_of(to);
  book(id, target, before.tokens, before.preemptions);
  Request& request = requests_.at(id);
  request.placed_tokens = before.placed_tokens;
  request.returns = true;
  expect(request);
  refresh(target);
  return true;
}

DecodeLoad DecodeLedger::load(RankId rank) const {
  const Rank& known = rank_of(rank);
  return {rank, known.believed_running, TokenCount{known.believed_kv}};
}

std::optional<RankId> DecodeLedger::where(RequestId id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  return ranks_[found->second.rank_slot].id;
}

const DecodeLedger::Request* DecodeLedger::find(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

std::int64_t DecodeLedger::free_blocks(RankId rank) const {
  const Rank& known = rank_of(rank);
  const std::int64_t foreign = std::max<std::int64_t>(0, known.correction_kv);
  return known.capacity.kv.value / model::kBlockTokens - known.blocks - blocks_of(foreign);
}

bool DecodeLedger::has_room(RankId rank, TokenCount tokens) const {
  const Rank& known = rank_of(rank);
  return known.open && known.index->has_room(known.index_slot, tokens.value);
}

bool DecodeLedger::could_ever_fit(TokenCount tokens) const {
  for (const auto& [id, slot] : slots_)
    if (tokens.value + headroom_ <= ranks_[slot].capacity.kv.value) return true;
  return false;
}

std::vector<DecodeLedger::Request> DecodeLedger::requests(RankId rank) const {
  std::vector<Request> listed;
  for (const RequestId id : rank_of(rank).requests) listed.push_back(requests_.at(id));
  return listed;
}

}  // namespace trimtab::policy
