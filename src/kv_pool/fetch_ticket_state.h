#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kv_pool/content_checksum.h"
#include "kv_pool/fetch_ticket.h"
#include "kv_pool/pool_link.h"

namespace trimtab::kv_pool {

/// What a ticket knows of its plan; private to the client's sources. All under the link's lock.
struct FetchTicket::State {
  struct Block {
    model::BlockKey key;
    std::uint32_t slot = 0, layers = 0;
    bool whole = false, over = false;
    std::uint64_t checksum = 0;
  };
  void news(const ProgressEntry& entry);
  void failed(std::uint32_t block, const ProgressEntry& entry);
  /// Not under the lock: it sends.
  void release(std::vector<std::uint32_t> numbers, bool corrupt);

  std::shared_ptr<PoolLink> link;
  std::uint64_t id = 0;
  std::vector<Block> blocks;
  std::vector<std::vector<std::uint32_t>> ready;  // by layer: not given yet
  std::vector<Finished> done;                     // not given yet
  std::vector<std::uint32_t> to_release;
  std::optional<base::Error> failure;  // the first
};

}  // namespace trimtab::kv_pool
