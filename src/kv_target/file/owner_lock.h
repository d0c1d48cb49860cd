#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "base/units.h"
#include "kv_target/file/descriptor.h"

namespace trimtab::kv_target::file {

/// How long an owner is waited for that may be ending. A process that was killed lets go of its locks only
/// after its memory is freed, and who restarts it comes before that.
inline constexpr base::Nanos kOwnerPatience{3'000'000'000};

enum class LockFile : std::uint8_t { kMake, kFind };

/// Why a lock was not had.
struct LockRefusal {
  int reason = 0;    // errno: EWOULDBLOCK, another process holds it; ENOENT, no such file to be found
  std::string held;  // for the message: who holds it, as far as this machine knows, and the vain wait
  bool is_held() const;
};

/// The locked file: the lock is its owner's until the descriptor closes, or the process ends, however it
/// does. One that is held is asked for again until `patience` is over. The only place that waits for an
/// owner.
tl::expected<Descriptor, LockRefusal> take_lock(const std::string& path, LockFile file = LockFile::kMake,
                                                base::Nanos patience = kOwnerPatience);

}  // namespace trimtab::kv_target::file
