#include "agents/prefix_source.h"

#include <algorithm>
#include <utility>

namespace trimtab::agents {

using base::operator""_ms;

PoolPrefixSource::PoolPrefixSource(std::string socket_path, const base::Clock& clock, base::Nanos timeout)
    : socket_path_(std::move(socket_path)), clock_(clock), timeout_(timeout) {}

kv_pool::PoolClient* PoolPrefixSource::client() {
  if (client_) return &*client_;
  const base::Nanos now = clock_.now();
  if (now < next_dial_) return nullptr;
  kv_pool::ClientOptions options;
  options.timeout = timeout_;
  auto connected = kv_pool::PoolClient::connect(socket_path_, base::Nanos{0}, options);
  if (!connected) {
    const base::Nanos after = clock_.now();
    next_dial_ = after + std::max<base::Nanos>(100_ms, (after - now) * 10);
    return nullptr;
  }
  client_.emplace(std::move(*connected));
  return &*client_;
}

base::Result<kv_pool::Match> PoolPrefixSource::match(std::span<const model::BlockKey> keys, bool counted,
                                                     std::uint32_t prompt_blocks) {
  kv_pool::PoolClient* pool = client();
  if (pool == nullptr) {
    return base::fail(base::Code::kUnavailable, "the KV pool at " + socket_path_ + " does not answer",
                      "agents");
  }
  return pool->match(keys, counted, prompt_blocks);
}

void PoolPrefixSource::answered(std::uint64_t request, std::uint32_t tokens) {
  if (client_) client_->answered(request, tokens);
}

std::optional<kv_pool::PoolStats> PoolPrefixSource::stats() {
  kv_pool::PoolClient* pool = client();
  if (pool == nullptr) return std::nullopt;
  auto stats = pool->stats();
  if (!stats) return std::nullopt;
  return *stats;
}

}  // namespace trimtab::agents
