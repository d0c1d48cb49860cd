#include "agents/encodings.h"

#include "ipc/segment.h"

namespace trimtab::agents {

void Encodings::asked(model::RequestId request, std::uint32_t image, model::EncoderId encoder,
                      std::string segment) {
  asked_[std::move(segment)] = {request, image, encoder};
}

bool Encodings::written(const std::string& segment) { return asked_.erase(segment) > 0; }

template <class Predicate>
void Encodings::sweep(Predicate gone) {
  for (auto it = asked_.begin(); it != asked_.end();) {
    if (!gone(it->second)) {
      ++it;
      continue;
    }
    unlink_segment(it->first);
    it = asked_.erase(it);
  }
}

void Encodings::failed(model::EncoderId encoder, model::RequestId request, std::uint32_t image) {
  sweep([&](const Asked& a) { return a.encoder == encoder && a.request == request && a.image == image; });
}

void Encodings::released(model::EncoderId encoder, model::RequestId request) {
  sweep([&](const Asked& a) { return a.encoder == encoder && a.request == request; });
}

void Encodings::lost(model::EncoderId encoder) {
  sweep([&](const Asked& a) { return a.encoder == encoder; });
}

void unlink_segment(const std::string& path) {
  if (!path.empty()) ipc::Segment::remove(path);
}

}  // namespace trimtab::agents
