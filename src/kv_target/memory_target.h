#pragma once

#include <memory>

#include "kv_target/change_feed.h"
#include "kv_target/shard_table.h"
#include "kv_target/target.h"

namespace trimtab::kv_target {

/// Shards in this process's memory: the fastest tier, and what tests compare others with. Requests are
/// carried out within `submit`; nothing survives the process. Lends what it holds: a write into the place of
/// a shard that is lent takes new memory.
class MemoryTarget final : public Target {
 public:
  struct Options {
    std::uint64_t capacity_bytes = 1ULL << 30;
    std::uint64_t shard_bytes = 16ULL << 20;
    std::uint64_t epoch = 1;  // must differ from one opening to the next
  };
  explicit MemoryTarget(Options options);

  void submit(std::span<const Request> requests) override;
  std::size_t poll(std::vector<Completion>& completed) override;
  int wake_fd() const override { return -1; }
  void cancel(std::uint64_t) override {}
  base::Result<Changes> changes(const Cursor& since, std::uint32_t limit) override;
  Limits limits() const override;
  base::Result<Space> space() override { return space_; }
  bool durable() const override { return false; }
  std::string trouble() const override { return {}; }

 private:
  Completion carry_out(const Request& request);
  Completion read(const Request& request);
  Completion write(const Request& request);

  struct Held {
    std::shared_ptr<std::byte[]> bytes;  // also of those it was lent to
    std::uint64_t size = 0;
  };
  Options options_;
  ShardTable<Held> shards_;
  ChangeFeed feed_;
  Space space_;
  std::vector<Completion> done_;
};

}  // namespace trimtab::kv_target
