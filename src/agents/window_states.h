#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "kv/hit_rule.h"
#include "kv/snapshot_directory.h"
#include "kv_state/snapshot_client.h"
#include "model/profile.h"
#include "wire/messages.h"

namespace trimtab::agents {

/// The entrypoint's side of window snapshots: which machines live and where they answer, what each holds, and
/// what a hit may be promised of it. One thread calls; questions to machines go out from a thread of its own,
/// one at a time, since a machine that hangs may only cost freshness, never a request's time.
class WindowStates {
 public:
  using Answer = std::variant<kv::SnapshotDelta, kv::SnapshotList, base::Error>;

  /// `layout`: of the profile; `post` runs what it is given on the calling thread, soon.
  WindowStates(const model::KvLayout& layout, kv::WindowMode mode,
               std::function<void(std::function<void()>)> post);
  ~WindowStates();
  WindowStates(const WindowStates&) = delete;
  WindowStates& operator=(const WindowStates&) = delete;

  kv::WindowMode mode() const { return mode_; }
  /// A machine's store is here, perhaps in another life than before.
  void joined(const wire::StateHello& hello);
  /// It is dead: nothing that it held is promised from now on.
  void lost(std::uint32_t machine);
  /// Asks every machine that is not being asked for its news.
  void refresh();

  /// The states that a hit of the first `keys` (of blocks whose KV is present) may begin from.
  std::vector<wire::StateOffer> offers(std::span<const model::BlockKey> keys) const;
  /// A rank found nothing at any holder of the state after these keys: they are not offered again.
  void withdraw(std::span<const model::BlockKey> keys, const wire::StateOffer& offer);

  struct MachineLine {
    std::uint32_t machine = 0;
    std::string endpoint;
    std::uint64_t epoch = 0, snapshots = 0;
  };
  std::vector<MachineLine> machines() const;

 private:
  struct Machine {
    kv_state::Endpoint endpoint;
    std::uint64_t epoch = 0;
    bool asked = false, wants_list = false;
  };
  struct Question {
    std::uint32_t machine = 0;
    kv_state::Endpoint endpoint;
    std::uint64_t epoch = 0;  // of the life that is asked
    std::uint64_t sequence = 0;
    std::optional<std::uint64_t> ticket;  // of a list; otherwise changes since
  };
  void ask_loop();
  Answer ask(const Question& question);
  void on_answer(const Question& question, const Answer& answer);

  model::BlockKey layout_key_;
  std::uint32_t look_back_blocks_ = 0;
  kv::WindowMode mode_;
  std::function<void(std::function<void()>)> post_;
  kv::SnapshotDirectory directory_;
  std::map<std::uint32_t, Machine> machines_;
  kv_state::SnapshotClient client_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Question> questions_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace trimtab::agents
