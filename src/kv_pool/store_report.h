#pragma once

#include <span>
#include <string>

#include "kv_pool/pool_report.h"
#include "kv_store/striped_store.h"

namespace trimtab::kv_pool {

/// O(blocks). `opened_by`: the map's record; where the store keeps one itself, that one counts. `names`: by
/// number, what targets are called here; for those beyond them the map's places.
PoolReport report_on(kv_store::StripedStore& store, const kv_store::MapRecord& opened_by,
                     std::span<const std::string> names, std::uint64_t block_bytes, base::Nanos now);

}  // namespace trimtab::kv_pool
