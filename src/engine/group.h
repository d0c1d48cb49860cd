#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "ipc/segment.h"

namespace trimtab::engine {

/// What the shared segment of a group must hold; the same on every rank.
struct GroupShape {
  std::uint32_t ranks = 1;
  std::uint32_t experts = 1;
  std::uint32_t hidden = 0;
};

/// The collectives of one DP group over shared memory: ranks are processes. Waits spin briefly, then park on
/// a futex, because two cores may carry a dozen ranks. A rank that dies breaks the group: every wait of its
/// peers ends with kUnavailable, and the supervisor starts the group anew.
class Group {
 public:
  static constexpr std::size_t kValues = 4;
  using Values = std::array<std::int64_t, kValues>;

  /// Rank 0 creates `path`; the others wait for it, and all wait for each other, up to `patience`.
  /// kUnavailable when a peer does not come, kInvalidArgument when the peers disagree on the shape.
  static base::Result<Group> join(const std::string& path, std::uint32_t rank, const GroupShape& shape,
                                  base::Nanos patience);
  Group(Group&& other) noexcept;
  Group& operator=(Group&&) = delete;
  /// Leaving without `leave` breaks the group.
  ~Group();
  /// All ranks agreed to part.
  void leave() { left_ = true; }

  std::uint32_t rank() const { return rank_; }
  const GroupShape& shape() const { return shape_; }

  base::Status barrier();
  /// Every rank's values, in rank order; one barrier.
  base::Result<std::span<const Values>> all_gather(const Values& mine);

  /// Wakes sleeping ranks of the group. Safe in signal handlers and from any thread.
  void ring();
  std::uint32_t doorbell() const;
  /// Sleeps until the doorbell is no longer `seen`; kUnavailable when a peer died meanwhile.
  base::Status sleep(std::uint32_t seen);

  /// Rows that enter the experts: f32 [ranks * kWaveRows][hidden], the ranks' rows one after another.
  float* inputs() const { return inputs_; }
  /// What expert `expert` made of them, same shape.
  float* outputs(std::uint32_t expert) const;

 private:
  struct Header;
  struct Slot;
  struct Layout;
  Group() = default;
  base::Status meet(base::Nanos patience);
  base::Status check_peers();
  Slot& slot(std::uint32_t rank) const;

  ipc::Segment segment_;
  Header* header_ = nullptr;
  GroupShape shape_;
  std::uint32_t rank_ = 0;
  float* inputs_ = nullptr;
  float* outputs_ = nullptr;
  std::uint64_t gathers_ = 0;
  std::vector<Values> gathered_;
  std::vector<int> peers_;  // pidfd of each other rank; readable once it has ended
  bool left_ = false;
};

}  // namespace trimtab::engine
