#pragma once

#include <string>
#include <vector>

#include "gguf/builder.h"

namespace trimtab::text {

/// A model file for tests: the 256 bytes, a few merges, ChatML's special tokens and, when `hidden` > 0, an
/// embedding table in which row i holds i, i + 0.5, ... Rooms above use it as well.
gguf::Builder small_model(std::uint32_t hidden = 0);

}  // namespace trimtab::text
