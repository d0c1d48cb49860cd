#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/expert_array.h"

namespace trimtab::io {

inline constexpr std::size_t kPickleNameBytesMax = 256;  // of storages and globals

/// The names that a pickle may use. Storages and types carry their element type.
enum class Name : std::uint8_t { kOrderedDict, kSize, kRebuild, kRebuildTyped, kUntyped, kTyped };
struct Global {
  Name name;
  ElementType type;
};

/// "torch IntStorage", as the pickle writes module and name; null for every name that is not one of ours.
std::optional<Global> global_of(const std::string& name);

/// At most kPickleNameBytesMax of it, for an error.
std::string printable(std::string_view text);

}  // namespace trimtab::io
