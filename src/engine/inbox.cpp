#include "engine/inbox.h"

#include <utility>

namespace trimtab::engine {

void Inbox::post(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  ring_();
}

std::vector<Event> Inbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

ControlLink::ControlLink(ipc::Channel channel, Inbox& inbox) : channel_(std::move(channel)), inbox_(inbox) {
  thread_ = std::thread([this] {
    while (true) {
      auto frame = channel_.receive();
      if (!frame) return inbox_.post(ControlLost{base::to_string(frame.error())});
      if (frame->has_value()) inbox_.post(std::move(**frame));
    }
  });
}

ControlLink::~ControlLink() {
  channel_.shutdown();
  thread_.join();
}

}  // namespace trimtab::engine
