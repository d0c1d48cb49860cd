#pragma once

#include <cstdint>
#include <string>

namespace trimtab::supervisor {

/// What the log's last lines, from byte `begin` on (where the process's life began), say of its end: the last
/// one with which a command of ours tells its error, else the last one. At most 500 characters, all
/// printable; empty: there is none.
std::string last_words(const std::string& log, std::uint64_t begin);

}  // namespace trimtab::supervisor
