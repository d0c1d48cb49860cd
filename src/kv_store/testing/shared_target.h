#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kv_target/memory_target.h"

namespace trimtab::kv_store::testing {

/// One target in memory as several processes have it: each holds a handle of its own, and the content
/// outlives them all.
struct SharedContent {
  explicit SharedContent(std::uint64_t capacity_bytes = 64ULL << 20, std::uint64_t epoch = 1)
      : target({capacity_bytes, 16ULL << 20, epoch}) {}
  kv_target::MemoryTarget target;
  bool dead = false;
  std::function<bool(const kv_target::Request&)> refuse;  // true: the request fails and does nothing
};

class SharedTarget final : public kv_target::Target {
 public:
  explicit SharedTarget(std::shared_ptr<SharedContent> content) : content_(std::move(content)) {}

  void submit(std::span<const kv_target::Request> requests) override {
    for (const kv_target::Request& request : requests) {
      if (content_->dead || (content_->refuse && content_->refuse(request))) {
        kv_target::Completion failed;
        failed.tag = request.tag;
        failed.outcome = kv_target::Outcome::kFailed;
        done_.push_back(failed);
        continue;
      }
      content_->target.submit({&request, 1});
      content_->target.poll(done_);
    }
  }
  std::size_t poll(std::vector<kv_target::Completion>& completed) override {
    const std::size_t count = done_.size();
    completed.insert(completed.end(), done_.begin(), done_.end());
    done_.clear();
    return count;
  }
  int wake_fd() const override { return -1; }
  void cancel(std::uint64_t) override {}
  base::Result<kv_target::Changes> changes(const kv_target::Cursor& since, std::uint32_t limit) override {
    if (content_->dead) return base::fail(base::Code::kUnavailable, "dead by the test", "test");
    return content_->target.changes(since, limit);
  }
  kv_target::Limits limits() const override { return content_->target.limits(); }
  base::Result<kv_target::Space> space() override { return content_->target.space(); }
  bool durable() const override { return true; }
  std::string trouble() const override { return content_->dead ? "dead by the test" : ""; }

 private:
  std::shared_ptr<SharedContent> content_;
  std::vector<kv_target::Completion> done_;
};

}  // namespace trimtab::kv_store::testing
