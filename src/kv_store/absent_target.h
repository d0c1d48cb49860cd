#pragma once

#include <vector>

#include "kv_target/target.h"

namespace trimtab::kv_store {

/// Stands for a target that left the pool for good: its number stays, so that the others keep theirs.
class AbsentTarget final : public kv_target::Target {
 public:
  void submit(std::span<const kv_target::Request> requests) override {
    for (const kv_target::Request& request : requests) {
      kv_target::Completion failed;
      failed.tag = request.tag;
      failed.outcome = kv_target::Outcome::kFailed;
      failed_.push_back(failed);
    }
  }
  std::size_t poll(std::vector<kv_target::Completion>& completed) override {
    const std::size_t count = failed_.size();
    completed.insert(completed.end(), failed_.begin(), failed_.end());
    failed_.clear();
    return count;
  }
  int wake_fd() const override { return -1; }
  void cancel(std::uint64_t) override {}
  base::Result<kv_target::Changes> changes(const kv_target::Cursor&, std::uint32_t) override {
    return gone();
  }
  kv_target::Limits limits() const override { return {UINT64_MAX, UINT64_MAX, UINT32_MAX}; }
  base::Result<kv_target::Space> space() override { return gone(); }
  bool durable() const override { return true; }
  std::string trouble() const override { return {}; }

 private:
  static tl::unexpected<base::Error> gone() {
    return base::fail(base::Code::kUnavailable, "it left the pool", "kv_store");
  }
  std::vector<kv_target::Completion> failed_;
};

}  // namespace trimtab::kv_store
