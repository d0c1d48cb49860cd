#include "sim/encoders.h"

#include <fmt/format.h>

#include <algorithm>

#include "policy/vision/image_size.h"

namespace trimtab::sim {

using model::Role;

Encoders::Encoders(const model::Scenario& scenario, Host& host)
    : scenario_(scenario),
      host_(host),
      per_machine_(scenario.cluster.vision.encoders),
      encoders_(static_cast<std::size_t>(scenario.cluster.vision.machines) * per_machine_) {
  outcome_.machines.resize(scenario.cluster.vision.machines);
}

void Encoders::join(std::uint32_t machine, std::uint32_t encoder) {
  host_.tell(cluster::Joined{{Role::kVision, EngineId{machine}, encoder}, 0});
}

void Encoders::start(model::EncoderId id, RequestId request, std::uint32_t image, std::int64_t patches) {
  const std::uint32_t index = id.machine.value * per_machine_ + id.encoder;
  encoders_[index].jobs.push_back({request, image, patches, host_.queue().now()});
  std::uint32_t& most = machine_of(index).queue_most;
  most = std::max(most, static_cast<std::uint32_t>(encoders_[index].jobs.size()));
  if (encoders_[index].jobs.size() == 1) begin(index);
}

void Encoders::begin(std::uint32_t index) {
  Encoder& encoder = encoders_[index];
  if (encoder.jobs.empty()) return;
  const double span =
      static_cast<double>(encoder.jobs.front().patches) / scenario_.encoder.patches_per_s * 1e9;
  encoder.began = host_.queue().now();
  machine_of(index).waiting_s += base::to_seconds(encoder.began - encoder.jobs.front().asked);
  host_.queue().after(scenario_.encoder.fixed + Nanos{static_cast<std::int64_t>(span)}, EventKind::kEncoded,
                      index, ++encoder.version);
}

void Encoders::woken(std::uint32_t index, std::uint64_t version) {
  Encoder& encoder = encoders_[index];
  if (version != encoder.version || encoder.jobs.empty()) return;
  const Job job = encoder.jobs.front();
  encoder.jobs.pop_front();
  const Nanos now = host_.queue().now(), actual = now - encoder.began;
  encoder.busy += actual;
  begin(index);
  if (!job.wanted) return;
  ++outcome_.images;
  outcome_.patches += job.patches;
  outcome_.delay.add(now - job.asked);
  VisionMachine& machine = machine_of(index);
  ++machine.images;
  machine.patches += job.patches;
  machine.delay.add(now - job.asked);
  const model::EncoderId from{model::MachineId{index / per_machine_}, index % per_machine_};
  host_.tell(cluster::Encoded{from, job.id, job.image, actual});
}

void Encoders::abort(model::EncoderId id, RequestId request) {
  Encoder& encoder = encoders_[id.machine.value * per_machine_ + id.encoder];
  for (std::size_t i = encoder.jobs.size(); i > 0; --i) {
    if (encoder.jobs[i - 1].id != request) continue;
    if (i > 1) {
      encoder.jobs.erase(encoder.jobs.begin() + static_cast<std::ptrdiff_t>(i - 1));
    } else {
      encoder.jobs.front().wanted = false;
    }
  }
}

void Encoders::lose(std::uint32_t machine, std::uint32_t id) {
  Encoder& encoder = encoders_[machine * per_machine_ + id];
  if (!encoder.jobs.empty()) encoder.busy += host_.queue().now() - encoder.began;
  encoder.jobs.clear();
  ++encoder.version;
}

VisionOutcome Encoders::outcome(Nanos span) const {
  VisionOutcome all = outcome_;
  const double seconds = std::max(base::to_seconds(span), 1e-9);
  for (std::size_t index = 0; index < encoders_.size(); ++index) {
    const double busy = base::to_seconds(encoders_[index].busy) / seconds;
    all.busy += busy / static_cast<double>(encoders_.size());
    all.machines[index / per_machine_].busy += busy / static_cast<double>(per_machine_);
  }
  return all;
}

base::Result<std::vector<model::ImageSpan>> image_spans(std::span<const model::TraceImage> images,
                                                        std::int64_t prompt_tokens,
                                                        const model::VisionSpec& spec) {
  std::vector<model::ImageSpan> spans;
  std::int64_t all = 0;
  for (const model::TraceImage& image : images) {
    model::ImageSpan span;
    span.tokens = image.tokens;
    span.width = image.width;
    span.height = image.height;
    std::int64_t patches = static_cast<std::int64_t>(image.tokens) * spec.downsample * spec.downsample;
    if (image.width > 0 || image.height > 0) {
      const auto sized = policy::image_patches(spec, image.width, image.height);
      if (!sized) return tl::unexpected<base::Error>(sized.error());
      patches = *sized;
      if (image.tokens == 0) {
        const auto tokens = policy::image_tokens(spec, image.width, image.height);
        if (!tokens) return tl::unexpected<base::Error>(tokens.error());
        span.tokens = static_cast<std::uint32_t>(tokens->value);
      }
    }
    span.patches = static_cast<std::uint32_t>(std::clamp<std::int64_t>(patches, 1, UINT32_MAX));
    all += span.tokens;
    spans.push_back(span);
  }
  if (all >= prompt_tokens && !spans.empty()) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("images of {} tokens in a prompt of {}: the trace's prompt includes its images", all,
                    prompt_tokens),
        "trace");
  }
  // The last token is the question's own: an image can be the last thing that a hit lacks, never all of it.
  std::int64_t at = prompt_tokens - 1 - all;
  for (model::ImageSpan& span : spans) {
    span.position = static_cast<std::uint32_t>(at);
    at += span.tokens;
  }
  return spans;
}

}  // namespace trimtab::sim
