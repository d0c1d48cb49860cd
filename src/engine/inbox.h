#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/block_mover.h"
#include "engine/state_mover.h"
#include "ipc/channel.h"
#include "wire/messages.h"

namespace trimtab::engine {

/// The control process closed its connection.
struct ControlLost {
  std::string reason;
};

using Event = std::variant<ipc::Frame, MoveDone, HitComing, StateDone, ControlLost>;

/// What happened while a step ran. Any thread posts; the rank's loop takes. `ring` wakes the loop.
class Inbox {
 public:
  explicit Inbox(std::function<void()> ring) : ring_(std::move(ring)) {}
  void post(Event event);
  /// Something changed that is no event.
  void wake() { ring_(); }
  std::vector<Event> take();

 private:
  std::function<void()> ring_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

/// The connection to the control process: a thread receives into the inbox, the rank's loop sends.
class ControlLink {
 public:
  ControlLink(ipc::Channel channel, Inbox& inbox);
  ~ControlLink();

  /// A lost peer shows up as `ControlLost` in the inbox, so senders need not care. Any thread.
  void send_frame(const ipc::Frame& frame) {
    const std::lock_guard lock(send_mutex_);
    (void)channel_.send(frame);
  }

 private:
  ipc::Channel channel_;
  std::mutex send_mutex_;
  Inbox& inbox_;
  std::thread thread_;
};

}  // namespace trimtab::engine
