#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/prng.h"
#include "base/units.h"

namespace trimtab::policy {

/// How work finds its prefill rank. `pull` is ours (queues.h); the others push: they choose a rank when a
/// request arrives, as routers in front of engines do, and it waits there whatever becomes idle elsewhere.
/// They are kept to be compared with, and for engines that cannot pull.
enum class PrefillAssignment : std::uint8_t {
  kPull,
  kRandom,
  kRoundRobin,
  kPowerOfTwo,     // of two random ranks the one with less work
  kLeastRequests,  // SGLang's shortest queue, vLLM's least requests
  kLeastWork,      // least predicted quota outstanding
  kDualPath,       // central FIFO; the rank with least unfinished tokens among those below a ceiling (arXiv
                   // 2602.21548)
};
std::span<const std::string_view> prefill_assignment_names();
/// An unknown name is an error that offers the nearest.
base::Result<PrefillAssignment> prefill_assignment(std::string_view name);

/// What a rank has been given and has not finished.
struct AssignedLoad {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;  // total context of them, DualPath's proxy of load
  base::Nanos work;         // predicted quota
  bool open = false;        // in service
};

/// Chooses the rank of a request that is pushed: an index of `ranks`, none when no rank is open (DualPath:
/// none is below its ceiling). Ties go to the lower index. O(ranks). Weakness of all: the choice is made
/// before the wait, so an error in what was believed of a rank stays with the request.
class PrefillAssigner {
 public:
  /// `ceiling_tokens`: DualPath's beta, what one rank computes in five seconds.
  PrefillAssigner(PrefillAssignment rule, std::uint64_t seed, std::int64_t ceiling_tokens);
  std::optional<std::uint32_t> choose(std::span<const AssignedLoad> ranks);
  PrefillAssignment rule() const { return rule_; }

 private:
  std::optional<std::uint32_t> random(std::span<const AssignedLoad> ranks);
  PrefillAssignment rule_;
  base::Prng prng_;
  std::int64_t ceiling_tokens_;
  std::uint32_t next_ = 0;
};

}  // namespace trimtab::policy
