#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/job_queues.h"
#include "engine/state_arena.h"
#include "ipc/channel.h"
#include "kv/snapshot_name.h"
#include "kv_state/snapshot_client.h"
#include "model/ids.h"
#include "wire/messages.h"

namespace trimtab::engine {

/// One move of window state. The slot stays the request's until the job is done.
struct StateJob {
  enum class Kind : std::uint8_t {
    kHandOver,  // this rank's slot into a decode rank's
    kRestore,   // a snapshot into this rank's slot, from the first holder that has it
    kKeep,      // a snapshot to this machine's store; nobody waits for it
  } kind = Kind::kKeep;
  model::RequestId id;
  std::uint64_t stay = 0;  // the owner's: which stay of the request at this rank it belongs to
  std::uint32_t slot = 0;
  kv::SnapshotName name;                   // kRestore, kKeep
  std::vector<wire::StateHolder> holders;  // kRestore
  std::vector<std::byte> content;          // kKeep
  model::RankId target;                    // kHandOver
  std::string segment;                     // kHandOver: the decode rank's KV arena
  std::uint32_t target_slot = 0;           // kHandOver
};

struct StateDone {
  StateJob job;
  base::Status status;  // kRestore: why the last holder that was asked did not give it
};

struct StateMoverOptions {
  kv::RingShape ring;
  std::string keep_socket;    // of this machine's store (kv_state::keep_snapshot)
  std::uint32_t machine = 0;  // this one: asked first
  base::Nanos fetch_timeout{1'000'000'000};
  std::size_t keeps_waiting_max = 64;      // beyond it the oldest is dropped: it would be late anyway
  base::Nanos keep_patience{200'000'000};  // with a store that does not read; then the next one waits no more
};

/// Moves window state in a thread of its own: hand-overs first, then restores, then snapshots. Every failure
/// of a restore or a snapshot means "compute it".
class StateMover {
 public:
  /// `on_done` is called on the mover's thread, for hand-overs and restores.
  StateMover(const StateArena& arena, StateMoverOptions options, std::function<void(StateDone)> on_done);
  ~StateMover();

  void submit(StateJob job);

 private:
  void run();
  base::Status hand_over(const StateJob& job);
  base::Status restore(StateJob& job);
  void keep(const StateJob& job);
  /// Sends what is left of the message under way, as far as the store takes it within `patience`. False: it
  /// is gone.
  bool send_rest(base::Nanos patience);
  void drop_store();

  const StateArena& arena_;
  StateMoverOptions options_;
  std::function<void(StateDone)> on_done_;
  kv_state::SnapshotClient client_;
  std::map<model::RankId, StateArena> targets_;  // a restarted rank comes with a new segment
  std::optional<ipc::Channel> store_;
  std::vector<std::byte> message_;  // under way to it
  std::size_t sent_ = 0;            // of that

  std::mutex mutex_;
  std::condition_variable changed_;
  JobQueues<StateJob, 3> queues_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace trimtab::engine
