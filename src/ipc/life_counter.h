#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace trimtab::ipc {

/// How often a process of this kind has begun: the number in the file and one more, written (and on the
/// disk) before it is returned. What a process numbers within its life outgrows the lives before it by this
/// number; a clock would not do, since clocks are set back. kIo: it cannot be written, or holds something
/// else; then the process must not begin.
base::Result<std::uint64_t> next_life(const std::string& path);

}  // namespace trimtab::ipc
