#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trimtab::base {

/// The candidate with the least edit distance to `word` (ties: the first), or "" when none is close enough to
/// be a typo of it.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace trimtab::base
