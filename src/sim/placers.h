#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "policy/decode/policy.h"

namespace trimtab::sim {

/// Several independent placers behind the interface of one: each entrypoint decides for the requests that it
/// holds, with a policy of its own that knows its own deeds at once and those of the others from the ranks'
/// reports only, as late as these are. The ledger of this class is the truth, which the cluster machine uses
/// for memory, drains and accounts; no placer sees it. Which ranks are there and open all of them know at
/// once: a connection that ends is seen by everybody.
///
/// A placer may choose a rank that others have filled; the rank then refuses, as a real one does.
class Placers final : public policy::DecodePolicy {
 public:
  /// `placer_of`: which placer holds a request, below `count`. Errors: those of make_decode_policy.
  static base::Result<std::unique_ptr<Placers>> make(
      const policy::DecodeConfig& config, std::uint32_t count,
      std::function<std::uint32_t(policy::RequestId)> placer_of);

  /// What the placer that holds the request sees of it.
  void running(policy::RequestId id, policy::TokenCount tokens, policy::Nanos now);
  void grew_there(policy::RequestId id, std::int64_t tokens, policy::Nanos now);
  void ended_there(policy::RequestId id, policy::Nanos now);
  /// A rank's own word, to every placer; `as_of` is when it was true.
  void reported(const policy::DecodeReport& report);
  /// The group is gone, and with it what it ran.
  void lost(model::EngineId group, std::uint32_t ranks);

 private:
  Placers(policy::DecodeConfig config, std::vector<std::unique_ptr<policy::DecodePolicy>> placers,
          std::function<std::uint32_t(policy::RequestId)> placer_of);
  std::optional<policy::RankId> choose(const policy::DecodeRequest& request, policy::Nanos now,
                                       policy::DecodeReason& reason) override;
  policy::DecodePolicy& of(policy::RequestId id) { return *placers_[placer_of_(id)]; }
  void follow_members(policy::DecodePolicy& placer) const;

  std::vector<std::unique_ptr<policy::DecodePolicy>> placers_;
  std::function<std::uint32_t(policy::RequestId)> placer_of_;
};

}  // namespace trimtab::sim
