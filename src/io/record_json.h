#pragma once

#include <nlohmann/json.hpp>

#include "cluster/records.h"

namespace trimtab::io {

/// The fields of a record's body by name. Spans are milliseconds (`_ms`), "no limit" is null; ranks are
/// {"engine", "rank"}, encoders {"machine", "encoder"}.
nlohmann::json fields_of(const cluster::Record& record);

/// null for `kForever`.
nlohmann::json millis_json(base::Nanos span);
nlohmann::json place_json(const cluster::Place& place);

}  // namespace trimtab::io
