#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv_target/target.h"

namespace trimtab::kv_target::testing {

/// A target together with what it lives on (a server, a directory), which ends after it: for the suite, which
/// holds targets alone.
template <class Ground, class Inner>
class TargetOn : public Target {
 public:
  Ground ground;
  std::unique_ptr<Inner> target;

  void submit(std::span<const Request> requests) override { target->submit(requests); }
  std::size_t poll(std::vector<Completion>& completed) override { return target->poll(completed); }
  int wake_fd() const override { return target->wake_fd(); }
  void cancel(std::uint64_t tag) override { target->cancel(tag); }
  base::Result<Changes> changes(const Cursor& since, std::uint32_t limit) override {
    return target->changes(since, limit);
  }
  Limits limits() const override { return target->limits(); }
  base::Result<Space> space() override { return target->space(); }
  bool durable() const override { return target->durable(); }
  std::string trouble() const override { return target->trouble(); }
  bool lacks_room() const override { return target->lacks_room(); }
};

}  // namespace trimtab::kv_target::testing
