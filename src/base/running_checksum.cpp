#include "base/running_checksum.h"

#define XXH_STATIC_LINKING_ONLY  // the state's layout
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

namespace trimtab::base {

struct RunningChecksum::State {
  XXH3_state_t state;
  std::uint64_t seed = 0;
};

RunningChecksum::RunningChecksum(std::uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->state);
  state_->seed = seed;
  reset();
}

RunningChecksum::~RunningChecksum() = default;
RunningChecksum::RunningChecksum(RunningChecksum&&) noexcept = default;
RunningChecksum& RunningChecksum::operator=(RunningChecksum&&) noexcept = default;

void RunningChecksum::reset() { XXH3_64bits_reset_withSeed(&state_->state, state_->seed); }

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->state, bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::value() const { return XXH3_64bits_digest(&state_->state); }

}  // namespace trimtab::base
