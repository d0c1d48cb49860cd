#include "kv_pool/store_tier.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace trimtab::kv_pool {

namespace {

// Erases take a moment to become durable, and only then their room can be used.
constexpr base::Nanos kRetry{5'000'000}, kRoomTakes{1'000'000'000};
constexpr std::uint32_t kTriesMost = 2'000;

}  // namespace

base::Result<std::unique_ptr<StoreTier>> StoreTier::open(
    std::vector<std::unique_ptr<kv_target::Target>> targets, Options options, base::Nanos now) {
  eviction::Settings settings;
  settings.capacity_blocks = std::max<std::int64_t>(1, static_cast<std::int64_t>(options.capacity_blocks));
  settings.cost = options.cost;
  auto policy = options.order ? base::Result<std::unique_ptr<eviction::Policy>>(std::move(options.order))
                              : eviction::make_policy(options.eviction, settings);
  if (!policy) return tl::unexpected(policy.error());
  const std::uint64_t bytes = options.store.layout.block_bytes;
  kv_store::OpenedPool pool;
  if (options.places.empty()) {
    auto store = kv_store::StripedStore::open(std::move(targets), std::move(options.store), now);
    if (!store) return tl::unexpected(store.error());
    pool.store = std::move(*store);
    pool.store->start_walk(kv_store::WalkKind::kRebuild, now);
  } else {
    // It rebuilds by itself: targets may have lost what they held while nobody looked, and a place that was
    // emptied or replaced is filled again.
    auto opened =
        kv_store::open_pool(std::move(targets), options.places, std::move(options.store), *options.clock);
    if (!opened) return tl::unexpected(opened.error());
    pool = std::move(*opened);
  }
  std::unique_ptr<StoreTier> tier(new StoreTier(std::move(pool.store), std::move(*policy), bytes));
  tier->notes_ = std::move(pool.notes);
  tier->opened_by_ = std::move(pool.record);
  tier->names_ = std::move(pool.names);
  tier->open_target_ = std::move(options.open_target);
  tier->clock_ = options.clock;
  tier->ttl_ = options.ttl;
  tier->adopt(now);
  if (const std::size_t others = tier->store_->index().strangers(); others > 0)
    tier->notes_.push_back(fmt::format(
        "the targets keep {} blocks of another model, in shards of other lengths than this one's: they "
        "are left alone until their room is needed; are [model] profile and [pool] targets right?",
        others));
  return tier;
}

eviction::Slot StoreTier::slot_of(BlockKey key) const {
  const auto found = slot_of_.find(key);
  return found == slot_of_.end() ? eviction::kNoSlot : found->second;
}

eviction::Block StoreTier::Origin::block(BlockKey key, std::uint64_t bytes, base::Nanos ttl,
                                         base::Nanos now) const {
  eviction::Block block;
  block.key = key.low;
  block.parent_key = parent ? parent->low : 0;
  block.position = position;
  block.bytes = base::Bytes{static_cast<std::int64_t>(bytes)};
  if (ttl != base::kForever) block.expires = now + ttl;
  return block;
}

void StoreTier::add(BlockKey key, const Origin& origin, base::Nanos now) {
  if (slot_of_.contains(key)) return;
  const eviction::Slot slot = slots_.take(key);
  slot_of_.emplace(key, slot);
  eviction::Block block = origin.block(key, block_bytes_, ttl_, now);
  if (origin.parent) block.parent = slot_of(*origin.parent);
  policy_->stored(slot, block, origin.access.value_or(eviction::Access{now}));
}

void StoreTier::remove(BlockKey key) {
  const auto found = slot_of_.find(key);
  if (found == slot_of_.end()) return;
  policy_->erased(found->second);
  slots_.give_back(found->second);
  slot_of_.erase(found);
}

void StoreTier::adopt(base::Nanos now) {
  for (const BlockKey key : store_->index().keys())
    if (store_->index().present(key)) add(key, {}, now);
  // Another model's leave for want of room as others do: its pool may be here no more.
  for (const BlockKey key : store_->index().stranger_keys()) add(key, {}, now);
}

std::uint32_t StoreTier::known(std::span<const BlockKey> keys) const {
  std::uint32_t blocks = 0;
  while (blocks < keys.size() && (present(keys[blocks]) || policy_->remembers(keys[blocks].low))) ++blocks;
  return blocks;
}

void StoreTier::answered(std::span<const BlockKey> keys, base::Nanos asked, std::uint32_t tokens,
                         base::Nanos now) {
  // A chain loses its end first: the last one that is there stands for the request.
  for (std::size_t i = keys.size(); i-- > 0;) {
    const eviction::Slot slot = slot_of(keys[i]);
    if (slot != eviction::kNoSlot) return policy_->answered(slot, asked, tokens, now);
  }
}

void StoreTier::touch(std::span<const BlockKey> keys, const eviction::Access& access) {
  for (const BlockKey key : keys)
    if (const eviction::Slot slot = slot_of(key); slot != eviction::kNoSlot) policy_->used(slot, access);
}

void StoreTier::load(BlockKey key, std::span<std::byte> to, std::uint64_t tag, base::Nanos deadline,
                     std::int32_t priority, base::Nanos now) {
  add(key, {}, now);  // another machine may have written it
  policy_->pin(slot_of(key));
  const kv_store::StripedStore::BlockRead read{key, to};
  const auto handle = store_->read({&read, 1}, deadline, priority, now);
  loads_.emplace(handle, Load{key, tag});
  load_of_.emplace(tag, handle);
}

void StoreTier::cancel_load(std::uint64_t tag, base::Nanos now) {
  const auto found = load_of_.find(tag);
  if (found == load_of_.end()) return;
  store_->cancel(found->second, now);
  policy_->unpin(slot_of(loads_.at(found->second).key));
  loads_.erase(found->second);
  load_of_.erase(found);
}

void StoreTier::save(BlockKey key, std::span<const std::byte> block, const Origin& origin, std::uint64_t tag,
                     base::Nanos now) {
  const auto handle = store_->write(key, block, base::kForever, now);
  saves_.emplace(handle, Save{key, block, origin, tag, base::Nanos{0}, base::Nanos{0}, 0});
}

void StoreTier::make_room(base::Nanos now) {
  // Another model's blocks take turns with this one's, from when they are met on.
  if (store_->index().strangers() > 0 && now - met_strangers_at_ >= kRoomTakes) {
    met_strangers_at_ = now;
    for (const BlockKey key : store_->index().stranger_keys()) add(key, {}, now);
  }
  auto victims = policy_->victims(base::Bytes{static_cast<std::int64_t>(block_bytes_)}, now);
  if (victims.empty()) {
    adopt(now);
    victims = policy_->victims(base::Bytes{static_cast<std::int64_t>(block_bytes_)}, now);
  }
  for (const eviction::Slot slot : victims) {
    const BlockKey key = slots_.key_of(slot);
    store_->erase({&key, 1}, now);
    slot_of_.erase(key);
    slots_.give_back(slot);
    ++evictions_;
  }
}

std::string StoreTier::trouble() {
  for (kv_store::TargetId id = 0; id < store_->channels().count(); ++id)
    if (auto why = store_->trouble(id); !why.empty()) return why;
  return {};
}

bool StoreTier::full_by_trouble() {
  // A write counts without the targets that may be lost, so their trouble is not why it found no room.
  std::uint32_t troubled = 0;
  bool answering = false;
  for (kv_store::TargetId id = 0; id < store_->channels().count(); ++id) {
    if (store_->has_left(id) || store_->takes_writes(id)) continue;
    ++troubled;
    answering |= store_->channels().usable(id);
  }
  return answering && troubled > store_->writes_may_lack();
}

void StoreTier::saved(const kv_store::StoreEvent& event, base::Nanos now, std::vector<Event>& events) {
  const auto found = saves_.find(event.handle);
  if (found == saves_.end()) return;
  using Kind = kv_store::StoreEvent::Kind;
  Save& save = found->second;
  if (event.kind == Kind::kFull && !full_by_trouble() && ++save.tries < kTriesMost) {
    save.retry_at = now + kRetry;
    return;
  }
  const bool written = event.kind == Kind::kWritten;
  if (written) add(save.key, save.origin, now);
  events.push_back({written ? Event::Kind::kSaved : Event::Kind::kSaveFailed, save.tag, 0});
  saves_.erase(found);
}

void StoreTier::loaded(const kv_store::StoreEvent& event, std::vector<Event>& events) {
  const auto found = loads_.find(event.handle);
  if (found == loads_.end()) return;
  using Kind = kv_store::StoreEvent::Kind;
  const Load load = found->second;
  if (event.kind == Kind::kLayers) {
    events.push_back({Event::Kind::kLayers, load.tag, event.layers});
    return;
  }
  loads_.erase(found);
  load_of_.erase(load.tag);
  policy_->unpin(slot_of(load.key));
  if (!store_->index().present(load.key)) {
    const bool read_elsewhere = std::any_of(loads_.begin(), loads_.end(),
                                            [&](const auto& other) { return other.second.key == load.key; });
    if (!read_elsewhere) remove(load.key);
  }
  const auto kind = event.kind == Kind::kRead      ? Event::Kind::kLoaded
                    : event.kind == Kind::kMissing ? Event::Kind::kGone
                                                   : Event::Kind::kLoadFailed;
  events.push_back({kind, load.tag, 0});
}

void StoreTier::retry_saves(base::Nanos now, std::vector<Event>& events) {
  std::vector<std::pair<kv_store::StripedStore::Handle, Save>> again;
  for (const auto& [handle, save] : saves_)
    if (save.retry_at.value > 0 && save.retry_at <= now) again.emplace_back(handle, save);
  if (again.empty()) return;
  for (auto& [handle, save] : again) {
    saves_.erase(handle);
    // Room for one block; more only if that has had time to come free and did not suffice.
    if (save.made_room_at.value == 0 || now - save.made_room_at >= kRoomTakes) {
      save.made_room_at = now;
      make_room(now);
    }
    if (policy_->count() == 0 && save.tries > 100) {
      events.push_back({Event::Kind::kSaveFailed, save.tag, 0});
      continue;
    }
    save.retry_at = base::Nanos{0};
    saves_.emplace(store_->write(save.key, save.block, base::kForever, now), save);
  }
}

void StoreTier::advance(base::Nanos now, std::vector<Event>& events) {
  events_.clear();
  store_->poll(now, events_);
  using Kind = kv_store::StoreEvent::Kind;
  for (const kv_store::StoreEvent& event : events_) {
    const bool write =
        event.kind == Kind::kWritten || event.kind == Kind::kWriteFailed || event.kind == Kind::kFull;
    write ? saved(event, now, events) : loaded(event, events);
  }
  retry_saves(now, events);
  if (store_->map_keeper() != nullptr) follow_map(now);
}

base::Nanos StoreTier::next_wake() {
  base::Nanos wake = store_->next_wake();
  for (const auto& [handle, save] : saves_)
    if (save.retry_at.value > 0) wake = std::min(wake, save.retry_at);
  return wake;
}

}  // namespace trimtab::kv_pool
