#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/ids.h"

namespace trimtab::policy {

struct VisionConfig {
  std::string policy = "random_machine";
  std::uint64_t seed = 1;
};

/// One image of one request: what an encoder works on.
struct VisionJob {
  model::RequestId request;
  std::uint32_t image = 0;
  constexpr auto operator<=>(const VisionJob&) const = default;
};

struct VisionReason {
  std::uint32_t machines = 0;                   // alive, to draw from
  std::vector<std::int64_t> patches_in_flight;  // on the drawn machine's encoders, by id; before this job
  std::optional<model::EncoderId> runner_up;    // on the same machine
};

struct VisionDecision {
  std::optional<model::EncoderId> encoder;  // none: no encoder is alive
  VisionReason reason;
};

/// "v1e0: machine 1 of 2 drawn, fewest patches in flight (4,000 before; others 8,000)".
std::string describe(const VisionDecision& decision);

/// Chooses the encoder of an image. Life of a job: decide -> started -> finished; a machine that is lost
/// gives its jobs back. The prefill machine asks after it has pulled the request.
class VisionPolicy {
 public:
  virtual ~VisionPolicy() = default;
  virtual void add_encoder(model::EncoderId encoder) = 0;
  /// Its jobs, by id, to be placed again.
  virtual std::vector<VisionJob> remove_encoder(model::EncoderId encoder) = 0;
  /// All encoders of a machine at once.
  virtual std::vector<VisionJob> machine_lost(model::MachineId machine) = 0;
  /// Closed: finishes what it has but takes nothing new (drain).
  virtual void set_open(model::MachineId machine, bool open) = 0;

  virtual void started(VisionJob job, model::EncoderId encoder, std::int64_t patches) = 0;
  /// Done, failed or cancelled. False when it was not known.
  virtual bool finished(VisionJob job) = 0;
  virtual VisionDecision decide(std::int64_t patches) = 0;

  virtual std::int64_t patches_in_flight(model::EncoderId encoder) const = 0;
  virtual std::size_t jobs_known() const = 0;
};

/// Errors: an unknown policy name (the nearest is offered).
base::Result<std::unique_ptr<VisionPolicy>> make_vision_policy(const VisionConfig& config);
std::span<const std::string_view> vision_policy_names();

}  // namespace trimtab::policy
