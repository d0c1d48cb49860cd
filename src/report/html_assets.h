#pragma once

#include <string_view>

namespace trimtab::report {

/// The style sheet and the script of every report: constants.
std::string_view html_style();
std::string_view html_script();

/// Colours of series and levels of heat that the style sheet has: classes c0.. (stroke), k0.. (fill), h0..
/// (heat).
inline constexpr int kColours = 8, kHeatLevels = 10;

}  // namespace trimtab::report
