#pragma once

#include <nlohmann/json.hpp>

#include "io/expert_array.h"

namespace trimtab::io {

/// The whole document; an error says where it breaks off. Documents are read up to 1 GiB.
base::Result<nlohmann::json> parse_json(ByteSource& source);

/// Nested lists of numbers as an array, up to 8 deep. Errors: a member that is neither list nor number, lists
/// of different lengths beside one another, more than `elements_max` numbers.
base::Result<ExpertArray> json_array(const nlohmann::json& value, std::int64_t elements_max);

}  // namespace trimtab::io
