#include "kv_pool/fetch_desk.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::kv_pool {

void FetchDesk::post(const Key& plan, std::uint32_t block, const ProgressEntry& entry) {
  Post one{plan.first, entry};
  one.entry.plan = plan.second;
  one.entry.block = block;
  posts_.push_back(one);
}

bool FetchDesk::fetch(ClientId client, const protocol::Fetch& plan, base::Nanos now) {
  const Key key{client, plan.plan};
  if (plan.keys.empty() || plans_.contains(key)) return false;
  std::uint64_t& blocks = blocks_of_[client];
  if (blocks + plan.keys.size() > limits_.blocks_per_client) {
    ++refused_;
    post(key, ProgressEntry::kWholePlan, {0, 0, 0, 0, FetchOutcome::kRefused, 0});
    return true;
  }
  ++opened_;
  blocks += plan.keys.size();
  Plan& one = plans_[key];
  for (const BlockKey block : plan.keys) one.blocks.push_back({block, Block::State::kWaiting, 0, 0});
  one.left = static_cast<std::uint32_t>(plan.keys.size());
  TRIMTAB_CHECK(
      scheduler_.add(client, plan.plan, one.left, base::Nanos{plan.deadline_ns}, plan.priority, now));
  return true;
}

void FetchDesk::let_go(Block& block, bool corrupt) {
  if (block.state == Block::State::kWaiting || block.state == Block::State::kOver) return;
  leases_.erase(block.lease);
  store_.end_lease(block.slot, block.lease, corrupt);
  block.state = Block::State::kOver;
}

void FetchDesk::forget(std::map<Key, Plan>::iterator plan) {
  for (Block& block : plan->second.blocks) let_go(block, false);
  const auto blocks = blocks_of_.find(plan->first.first);
  blocks->second -= plan->second.blocks.size();
  if (blocks->second == 0) blocks_of_.erase(blocks);
  scheduler_.cancel(plan->first.first, plan->first.second);
  plans_.erase(plan);
}

void FetchDesk::cancel(ClientId client, PlanId plan) {
  const auto found = plans_.find({client, plan});
  if (found == plans_.end()) return;  // all of it was over
  // One that has all its blocks and ends has come to its end: whoever swaps in by layer gives them back so.
  cancelled_ += std::ranges::any_of(found->second.blocks, [](const Block& block) {
    return block.state == Block::State::kWaiting || block.state == Block::State::kLoading;
  });
  forget(found);
  std::erase_if(posts_, [&](const Post& post) { return post.client == client && post.entry.plan == plan; });
}

void FetchDesk::leave(ClientId client) {
  for (auto plan = plans_.lower_bound({client, 0}); plan != plans_.end() && plan->first.first == client;)
    forget(plan++);
  blocks_of_.erase(client);
  std::erase_if(posts_, [&](const Post& post) { return post.client == client; });
}

void FetchDesk::over(const Key& key, Plan& plan, Block& block) {
  block.state = Block::State::kOver;
  TRIMTAB_CHECK(plan.left > 0);
  if (--plan.left == 0) forget(plans_.find(key));
}

bool FetchDesk::release(ClientId client, PlanId plan, std::span<const std::uint32_t> blocks, bool corrupt) {
  const Key key{client, plan};
  for (const std::uint32_t number : blocks) {
    const auto found = plans_.find(key);
    if (found == plans_.end()) return true;  // all of it was over
    if (number >= found->second.blocks.size()) return false;
    Block& block = found->second.blocks[number];
    if (block.state == Block::State::kWaiting) return false;
    if (block.state == Block::State::kOver) continue;  // its user could not know that it never had a slot
    let_go(block, corrupt);
    scheduler_.release(client, plan);
    over(key, found->second, block);
  }
  return true;
}

void FetchDesk::fold(const PoolStore::Answers::Progress& progress) {
  const auto found = leases_.find(progress.lease);
  if (found == leases_.end()) return;  // released since
  const Place& place = found->second;
  Block& block = plans_.at(place.plan).blocks[place.block];
  if (block.state != Block::State::kLoading) return;  // late since
  const bool whole = progress.outcome == FetchOutcome::kWhole;
  const std::uint32_t layers = whole ? limits_.layers : progress.layers;
  post(place.plan, place.block, {0, 0, progress.slot, layers, progress.outcome, progress.checksum});
  // A load that failed leaves the slot with the user, who may be copying layers that had come.
  if (progress.outcome != FetchOutcome::kLayers) block.state = Block::State::kHeld;
}

void FetchDesk::end_late(const Key& key) {
  scheduler_.close(key.first, key.second);
  Plan& plan = plans_.at(key);
  bool any = false;
  std::uint32_t over_now = 0;
  for (std::uint32_t i = 0; i < plan.blocks.size(); ++i) {
    Block& block = plan.blocks[i];
    if (block.state != Block::State::kWaiting && block.state != Block::State::kLoading) continue;
    any = true;
    post(key, i, {0, 0, 0, 0, FetchOutcome::kLate, 0});
    if (block.state == Block::State::kWaiting) {
      block.state = Block::State::kOver;
      ++over_now;
    } else {
      block.state = Block::State::kHeld;  // others may wait for it; the slot stays until it is released
    }
  }
  if (any) ++late_;
  plan.left -= over_now;
  if (plan.left == 0) forget(plans_.find(key));
}

void FetchDesk::start(base::Nanos now) {
  using Kind = PoolStore::Lease::Kind;
  scheduler_.new_turn();
  while (const auto pick = scheduler_.pick(now)) {
    const Key key{pick->client, pick->plan};
    Plan& plan = plans_.at(key);
    Block& block = plan.blocks[pick->block];
    const PoolStore::LeaseId id = ++last_lease_;
    const PoolStore::Lease lease = store_.lease(block.key, id, pick->priority, limits_.loads_most);
    if (lease.kind == Kind::kBusy) {
      scheduler_.put_off(*pick);
      continue;
    }
    if (lease.kind == Kind::kMissing) {
      scheduler_.skip(*pick, now);
      post(key, pick->block, {0, 0, 0, 0, FetchOutcome::kMissing, 0});
      over(key, plan, block);
      continue;
    }
    scheduler_.hold(*pick, now);
    block.slot = lease.slot;
    block.lease = id;
    leases_.emplace(id, Place{key, pick->block});
    const bool ready = lease.kind == Kind::kReady;
    block.state = ready ? Block::State::kHeld : Block::State::kLoading;
    if (ready)
      post(key, pick->block, {0, 0, lease.slot, limits_.layers, FetchOutcome::kWhole, lease.checksum});
    else if (lease.layers > 0)
      post(key, pick->block, {0, 0, lease.slot, lease.layers, FetchOutcome::kLayers, 0});
  }
}

void FetchDesk::advance(std::span<const PoolStore::Answers::Progress> progress, base::Nanos now) {
  for (const auto& one : progress) fold(one);
  for (const Key& key : scheduler_.late(now)) end_late(key);
  start(now);
}

void FetchDesk::count(PoolStats& stats) const {
  stats.fetch_plans = opened_;
  stats.fetch_plans_cancelled = cancelled_;
  stats.fetch_plans_late = late_;
  stats.fetch_plans_refused = refused_;
  stats.plans_open = plans_.size();
  stats.blocks_held = scheduler_.held();
}

}  // namespace trimtab::kv_pool
