#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "kv/snapshot_journal.h"

namespace trimtab::kv_state {

using kv::HostId;
using kv::SnapshotName;

struct SnapshotStats {
  std::uint64_t snapshots = 0;
  base::Bytes used_bytes, pinned_bytes;  // used includes pinned, and what is being copied in
  std::uint64_t puts = 0, puts_present = 0, puts_refused = 0;
  std::uint64_t found = 0, not_found = 0;
  std::uint64_t evicted = 0, corrupt = 0;
};

/// Window snapshots of one machine, in its own memory within a budget: the least recently used goes first,
/// never one that is referenced. A snapshot is visible when it is whole, and verified whenever it is found; a
/// corrupt one is dropped and is a miss. Any thread may call anything; copying and verifying hold no lock.
class SnapshotStore {
 private:
  struct Content;
  struct State;

 public:
  /// A reference to a snapshot: it stays where it is as long as this lives, even when its name is erased or
  /// the store is gone.
  class Lease {
   public:
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(content_, other.content_);
      return *this;
    }
    ~Lease();

    std::span<const std::byte> bytes() const;
    std::uint64_t checksum() const;  // kv::snapshot_checksum of name and bytes
    const SnapshotName& name() const;

   private:
    friend class SnapshotStore;
    Lease(std::shared_ptr<State> state, std::shared_ptr<Content> content)
        : state_(std::move(state)), content_(std::move(content)) {}
    std::shared_ptr<State> state_;
    std::shared_ptr<Content> content_;
  };

  /// `epoch` is larger than that of any store that this machine had before (kv::SnapshotJournal says why).
  SnapshotStore(base::Bytes budget, HostId machine, std::uint64_t epoch);

  /// Copies a snapshot in. One of this name that is there already stays, and is renewed. kTooLarge when it is
  /// beyond the budget, kResourceExhausted when references leave no room: the state is then simply not kept.
  base::Status put(const SnapshotName& name, std::span<const std::byte> content);
  std::optional<Lease> find(const SnapshotName& name);
  bool erase(const SnapshotName& name);

  /// What the entrypoint's directory is told.
  std::optional<kv::SnapshotDelta> changes_since(std::uint64_t sequence) const;
  kv::SnapshotList list(std::uint64_t ticket) const;
  HostId machine() const;
  std::uint64_t epoch() const;
  SnapshotStats stats() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trimtab::kv_state
