#pragma once

#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "kv_store/striped_store.h"

namespace trimtab::kv_store {

/// Polls the store, asleep while it has nothing to do, until the last event of `handle` is among `events`.
/// For callers with nothing else to wait for. kDeadlineExceeded after `most`; the handle goes on.
base::Status wait_for(StripedStore& store, const base::Clock& clock, StripedStore::Handle handle,
                      base::Nanos most, std::vector<StoreEvent>& events);

}  // namespace trimtab::kv_store
