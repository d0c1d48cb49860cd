#include "kv_target/memory_target.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace trimtab::kv_target {

MemoryTarget::MemoryTarget(Options options) : options_(options), feed_(options.epoch) {
  space_.capacity_bytes = options.capacity_bytes;
}

void MemoryTarget::submit(std::span<const Request> requests) {
  // All look-ups wait for memory together; one after the other each would wait for itself.
  shards_.prefetch(requests);
  for (const Request& request : requests)
    if (const Held* held = shards_.find(request.name)) __builtin_prefetch(held->bytes.get());
  for (const Request& request : requests) done_.push_back(carry_out(request));
}

std::size_t MemoryTarget::poll(std::vector<Completion>& completed) {
  const std::size_t count = done_.size();
  // Moved: what is lent is counted atomically.
  completed.insert(completed.end(), std::make_move_iterator(done_.begin()),
                   std::make_move_iterator(done_.end()));
  done_.clear();
  return count;
}

Completion MemoryTarget::carry_out(const Request& request) {
  switch (request.verb) {
    case Verb::kRead:
      return read(request);
    case Verb::kWrite:
      return write(request);
    case Verb::kErase:
      break;
  }
  const Held* held = shards_.find(request.name);
  if (held == nullptr) return {request.tag, Outcome::kMissing, 0};
  space_.used_bytes -= held->size;
  --space_.shards;
  shards_.erase(request.name);
  feed_.erased(request.name);
  return {request.tag, Outcome::kDone, 0};
}

Completion MemoryTarget::read(const Request& request) {
  const Held* held = shards_.find(request.name);
  if (held == nullptr) return {request.tag, Outcome::kMissing, 0};
  if (request.offset > held->size) return {request.tag, Outcome::kTooLarge, 0};
  const std::uint64_t bytes = std::min<std::uint64_t>(request.buffer.size(), held->size - request.offset);
  if (request.lend)
    return {request.tag, Outcome::kDone, bytes, Loan(held->bytes, held->bytes.get() + request.offset)};
  if (bytes > 0) std::memcpy(request.buffer.data(), held->bytes.get() + request.offset, bytes);
  return {request.tag, Outcome::kDone, bytes};
}

Completion MemoryTarget::write(const Request& request) {
  const std::uint64_t size = request.content.size();
  if (size == 0 || size > options_.shard_bytes) return {request.tag, Outcome::kTooLarge, 0};
  const Held* old = shards_.find(request.name);
  const std::uint64_t before = old == nullptr ? 0 : old->size;
  if (space_.used_bytes - before + size > space_.capacity_bytes) return {request.tag, Outcome::kFull, 0};
  Held& held = shards_.add(request.name);
  if (held.size != size || held.bytes.use_count() > 1)
    held.bytes = std::make_shared_for_overwrite<std::byte[]>(size);
  held.size = size;
  std::memcpy(held.bytes.get(), request.content.data(), size);
  space_.used_bytes += size - before;
  space_.shards += before == 0;
  space_.caller_bytes_written += size;
  space_.device_bytes_written += size;
  feed_.put(request.name, static_cast<std::uint32_t>(size));
  return {request.tag, Outcome::kDone, size};
}

base::Result<Changes> MemoryTarget::changes(const Cursor& since, std::uint32_t limit) {
  return feed_.since(since, limit);
}

Limits MemoryTarget::limits() const { return {options_.shard_bytes, options_.capacity_bytes, 1U << 20}; }

}  // namespace trimtab::kv_target
