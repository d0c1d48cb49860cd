#pragma once

#include <memory>

#include "kv_target/memory_target.h"

namespace trimtab::kv_store::testing {

/// A target in memory that can be told to fail.
class DeadTarget final : public kv_target::Target {
 public:
  explicit DeadTarget(std::uint64_t capacity_bytes) : inner_({capacity_bytes, 16ULL << 20, 1}) {}
  bool dead = false;

  void submit(std::span<const kv_target::Request> requests) override {
    if (!dead) return inner_.submit(requests);
    for (const kv_target::Request& request : requests)
      failed_.push_back({request.tag, kv_target::Outcome::kFailed, 0});
  }
  std::size_t poll(std::vector<kv_target::Completion>& completed) override {
    const std::size_t count = failed_.size();
    completed.insert(completed.end(), failed_.begin(), failed_.end());
    failed_.clear();
    return count + inner_.poll(completed);
  }
  int wake_fd() const override { return -1; }
  void cancel(std::uint64_t) override {}
  base::Result<kv_target::Changes> changes(const kv_target::Cursor& since, std::uint32_t limit) override {
    if (dead) return base::fail(base::Code::kUnavailable, "dead by the test", "test");
    return inner_.changes(since, limit);
  }
  kv_target::Limits limits() const override { return inner_.limits(); }
  base::Result<kv_target::Space> space() override { return inner_.space(); }
  bool durable() const override { return false; }
  std::string trouble() const override { return dead ? "dead by the test" : ""; }

 private:
  kv_target::MemoryTarget inner_;
  std::vector<kv_target::Completion> failed_;
};

}  // namespace trimtab::kv_store::testing
