#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/host.h"
#include "sim/outcomes.h"

namespace trimtab::sim {

/// The encoders of all vision machines: one image at a time each, in the order asked, `fixed + patches /
/// rate`. An image whose request went away while it was encoded is encoded to its end, as nobody can stop a
/// kernel.
class Encoders {
 public:
  Encoders(const model::Scenario& scenario, Host& host);

  void join(std::uint32_t machine, std::uint32_t encoder);
  void start(model::EncoderId encoder, RequestId id, std::uint32_t image, std::int64_t patches);
  void abort(model::EncoderId encoder, RequestId id);
  /// The image under way is done, when `version` is its.
  void woken(std::uint32_t index, std::uint64_t version);
  /// The encoder died with all that it had.
  void lose(std::uint32_t machine, std::uint32_t encoder);

  std::uint32_t per_machine() const { return per_machine_; }
  /// `span`: of the run, for the share of busy time.
  VisionOutcome outcome(Nanos span) const;

 private:
  struct Job {
    RequestId id;
    std::uint32_t image = 0;
    std::int64_t patches = 0;
    Nanos asked;
    bool wanted = true;
  };
  struct Encoder {
    std::deque<Job> jobs;  // the first is under way
    std::uint64_t version = 0;
    Nanos busy, began;
  };
  VisionMachine& machine_of(std::uint32_t index) { return outcome_.machines[index / per_machine_]; }
  void begin(std::uint32_t index);

  const model::Scenario& scenario_;
  Host& host_;
  std::uint32_t per_machine_;
  std::vector<Encoder> encoders_;
  VisionOutcome outcome_;
};

/// The images of a request as its spans in the prompt, and their patches. The trace says how many tokens or
/// pixels an image has, not where it stands: images come with their question, at the prompt's end. Patches
/// are those of the size, by the profile; where only tokens are known, tokens x downsample^2. Errors: a size
/// that the profile's model does not take; images that do not fit the prompt.
base::Result<std::vector<model::ImageSpan>> image_spans(std::span<const model::TraceImage> images,
                                                        std::int64_t prompt_tokens,
                                                        const model::VisionSpec& spec);

}  // namespace trimtab::sim
