// Images: encoders, and embeddings on their way to prefill ranks.
#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

constexpr std::uint64_t kImagesMax = 1 << 16;  // of one request

}  // namespace

TokenCount ready_tokens(const SimRequest& request) {
  for (std::size_t i = 0; i < request.images.size(); ++i) {
    const model::ImageSpan& image = request.images[i];
    const auto begins = static_cast<std::int64_t>(image.position);
    if (!request.embedded[i] && begins + image.tokens > request.hit) return TokenCount{begins};
  }
  return TokenCount{INT64_MAX};
}

void Simulation::on(const cluster::StartEncode& action) {
  const SimRequest* request = find(action.id);
  if (request == nullptr) return;
  encoders_.start(action.encoder, action.id, action.image, request->images[action.image].patches);
}

void Simulation::on(const cluster::SendEmbeddings& action) {
  const SimRequest* request = find(action.id);
  if (request == nullptr) return;
  queue_.after(scenario_.network.message, EventKind::kEmbedded, slot_of(action.id),
               request->prefill_pass * kImagesMax + action.image);
}

void Simulation::embedded(std::uint32_t slot, std::uint64_t version) {
  SimRequest& request = requests_[slot];
  const std::uint64_t image = version % kImagesMax;
  if (request.prefill_pass != version / kImagesMax || image >= request.embedded.size()) return;
  request.embedded[image] = true;
  request.ready = ready_tokens(request);
  if (request.computing)
    prefill_[request.prefill.engine.value].set_ready(request.prefill.rank, request.id, request.ready);
}

}  // namespace trimtab::sim
