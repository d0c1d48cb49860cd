#include "kv_pool/layered_checksum.h"

#include <xxhash.h>

namespace trimtab::kv_pool {

struct LayeredChecksum::State {
  XXH3_state_t* hash = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(hash); }
};

LayeredChecksum::LayeredChecksum(model::BlockKey key) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset_withSeed(state_->hash, key.high ^ key.low);
}
LayeredChecksum::LayeredChecksum(LayeredChecksum&&) noexcept = default;
LayeredChecksum& LayeredChecksum::operator=(LayeredChecksum&&) noexcept = default;
LayeredChecksum::~LayeredChecksum() = default;

void LayeredChecksum::add(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_->hash, piece.data(), piece.size());
}

std::uint64_t LayeredChecksum::value() const { return XXH3_64bits_digest(state_->hash); }

}  // namespace trimtab::kv_pool
