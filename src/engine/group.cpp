#include "engine/group.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/check.h"
#include "engine/feed_forward.h"
#include "ipc/futex.h"
#include "ipc/steady_clock.h"

namespace trimtab::engine {

namespace {

constexpr std::uint32_t kMagic = 0x7472'6d67;
// The barrier's word counts in twos; its lowest bit says that the group broke. One word for both, so that a
// barrier everyone reached is never taken for a broken one because a peer left right after it.
constexpr std::uint32_t kBroken = 1;
constexpr std::uint32_t kEpoch = 2;
constexpr base::Nanos kPeerCheck{100'000'000};  // how often a waiting rank looks whether its peers live
constexpr base::Nanos kIdleCheck{1'000'000'000};

tl::unexpected<base::Error> broken(std::uint32_t rank) {
  return base::fail(base::Code::kUnavailable, fmt::format("rank {}: a peer of the group is gone", rank),
                    "engine");
}

/// Short, because on a small machine the peer may need this very core.
bool spin_until_moved(const std::atomic<std::uint32_t>& word, std::uint32_t from) {
  for (int i = 0; i < 200; ++i) {
    if (word.load(std::memory_order_acquire) != from) return true;
    __builtin_ia32_pause();
  }
  return false;
}

int open_process(std::int32_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

struct alignas(64) Group::Slot {
  std::atomic<std::int32_t> pid{0};
  Values values[2]{};  // by parity: a rank may publish the next while a slow peer still reads the last
};

struct alignas(64) Group::Header {
  std::atomic<std::uint32_t> ready{0};  // kMagic once rank 0 has laid everything out
  GroupShape shape;
  std::atomic<std::int32_t> creator{0};
  alignas(64) std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> epoch{0};  // of the barrier, and kBroken
  alignas(64) std::atomic<std::uint32_t> parked{0};
  alignas(64) std::atomic<std::uint32_t> doorbell{0};

  bool broken() const { return (epoch.load(std::memory_order_acquire) & kBroken) != 0; }
  void break_up() {
    epoch.fetch_or(kBroken, std::memory_order_seq_cst);
    ipc::futex_wake_all(epoch);
  }
};

struct Group::Layout {
  static std::size_t slots() { return sizeof(Header); }
  static std::size_t inputs(const GroupShape& shape) { return slots() + shape.ranks * sizeof(Slot); }
  static std::size_t rows_bytes(const GroupShape& shape) {
    return sizeof(float) * shape.ranks * kWaveRows * shape.hidden;
  }
  static std::size_t outputs(const GroupShape& shape) { return inputs(shape) + rows_bytes(shape); }
  static std::size_t total(const GroupShape& shape) {
    return outputs(shape) + shape.experts * rows_bytes(shape);
  }
};

Group::Slot& Group::slot(std::uint32_t rank) const {
  return reinterpret_cast<Slot*>(segment_.data() + Layout::slots())[rank];
}

float* Group::outputs(std::uint32_t expert) const {
  return outputs_ + static_cast<std::size_t>(expert) * shape_.ranks * kWaveRows * shape_.hidden;
}

base::Result<Group> Group::join(const std::string& path, std::uint32_t rank, const GroupShape& shape,
                                base::Nanos patience) {
  TRIMTAB_CHECK(rank < shape.ranks && shape.hidden > 0 && shape.experts > 0);
  ipc::SteadyClock clock;
  const base::Nanos end = clock.now() + patience;
  Group group;
  group.rank_ = rank;
  group.shape_ = shape;
  if (rank == 0) {
    auto segment = ipc::Segment::create(path, Layout::total(shape));
    if (!segment) return tl::unexpected(segment.error());
    group.segment_ = std::move(*segment);
    auto* header = new (group.segment_.data()) Header;
    header->shape = shape;
    header->creator.store(getpid());
    for (std::uint32_t r = 0; r < shape.ranks; ++r) new (&group.slot(r)) Slot;
    header->ready.store(kMagic, std::memory_order_release);
  }
  while (rank != 0) {
    // An old file may lie here until rank 0 replaces it: only one whose creator lives counts.
    if (auto segment = ipc::Segment::open(path); segment && segment->size() >= sizeof(Header)) {
      auto* header = reinterpret_cast<Header*>(segment->data());
      const bool ready = header->ready.load(std::memory_order_acquire) == kMagic;
      const int creator = ready ? open_process(header->creator.load()) : -1;
      if (creator >= 0) {
        pollfd ended{creator, POLLIN, 0};
        const bool alive = poll(&ended, 1, 0) == 0;
        close(creator);
        if (alive && !header->broken()) {
          group.segment_ = std::move(*segment);
          break;
        }
      }
    }
    if (clock.now() >= end) {
      return base::fail(base::Code::kUnavailable, fmt::format("rank {}: rank 0 did not open {}", rank, path),
                        "engine");
    }
    usleep(2'000);
  }
  group.header_ = reinterpret_cast<Header*>(group.segment_.data());
  const GroupShape& made = group.header_->shape;
  if (made.ranks != shape.ranks || made.experts != shape.experts || made.hidden != shape.hidden ||
      group.segment_.size() != Layout::total(shape)) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("rank {} has {} ranks, {} experts, hidden {}; rank 0 made {} for {}, {}, {}: "
                    "all ranks must run one configuration and model",
                    rank, shape.ranks, shape.experts, shape.hidden, path, made.ranks, made.experts,
                    made.hidden),
        "engine");
  }
  group.inputs_ = reinterpret_cast<float*>(group.segment_.data() + Layout::inputs(shape));
  group.outputs_ = reinterpret_cast<float*>(group.segment_.data() + Layout::outputs(shape));
  group.gathered_.resize(shape.ranks);
  TRIMTAB_TRY(group.meet(end - clock.now()));
  return group;
}

base::Status Group::meet(base::Nanos patience) {
  ipc::SteadyClock clock;
  const base::Nanos end = clock.now() + patience;
  std::int32_t nobody = 0;
  if (!slot(rank_).pid.compare_exchange_strong(nobody, getpid())) {
    left_ = true;  // this place is another's; the group is not ours to break
    return base::fail(base::Code::kUnavailable,
                      fmt::format("rank {} is taken by process {} already", rank_, nobody), "engine");
  }
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    if (r == rank_) continue;
    std::int32_t pid = 0;
    while ((pid = slot(r).pid.load()) == 0) {
      if (clock.now() >= end) {
        return base::fail(base::Code::kUnavailable, fmt::format("rank {}: rank {} did not come", rank_, r),
                          "engine");
      }
      TRIMTAB_TRY(check_peers());
      usleep(1'000);
    }
    const int process = open_process(pid);
    if (process < 0) return broken(rank_);
    peers_.push_back(process);
  }
  return barrier();
}

Group::Group(Group&& other) noexcept
    : segment_(std::move(other.segment_)),
      header_(std::exchange(other.header_, nullptr)),
      shape_(other.shape_),
      rank_(other.rank_),
      inputs_(other.inputs_),
      outputs_(other.outputs_),
      gathers_(other.gathers_),
      gathered_(std::move(other.gathered_)),
      peers_(std::move(other.peers_)),
      left_(other.left_) {
  other.peers_.clear();
}

Group::~Group() {
  for (const int peer : peers_) close(peer);
  if (header_ == nullptr || left_) return;
  header_->break_up();
  ring();
}

base::Status Group::check_peers() {
  if (header_->broken()) return broken(rank_);
  for (const int peer : peers_) {
    pollfd ended{peer, POLLIN, 0};
    if (poll(&ended, 1, 0) > 0) {
      header_->break_up();
      return broken(rank_);
    }
  }
  return {};
}

base::Status Group::barrier() {
  if (shape_.ranks == 1) return {};
  const std::uint32_t epoch = header_->epoch.load(std::memory_order_acquire);
  if ((epoch & kBroken) != 0) return broken(rank_);
  if (header_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == shape_.ranks) {
    header_->arrived.store(0, std::memory_order_relaxed);
    header_->epoch.fetch_add(kEpoch, std::memory_order_seq_cst);
    if (header_->parked.load(std::memory_order_seq_cst) != 0) ipc::futex_wake_all(header_->epoch);
  } else if (!spin_until_moved(header_->epoch, epoch)) {
    header_->parked.fetch_add(1, std::memory_order_seq_cst);
    while (!ipc::wait_while_equal(header_->epoch, epoch, kPeerCheck, 0)) (void)check_peers();
    header_->parked.fetch_sub(1);
  }
  // The word moved because everyone came, or because the group broke first: only then is the count the same.
  const std::uint32_t now = header_->epoch.load(std::memory_order_acquire);
  if ((now & ~kBroken) == epoch) return broken(rank_);
  return {};
}

base::Result<std::span<const Group::Values>> Group::all_gather(const Values& mine) {
  const std::size_t parity = gathers_++ % 2;
  slot(rank_).values[parity] = mine;
  TRIMTAB_TRY(barrier());
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) gathered_[r] = slot(r).values[parity];
  return std::span<const Values>(gathered_);
}

void Group::ring() {
  header_->doorbell.fetch_add(1);
  ipc::futex_wake_all(header_->doorbell);
}

std::uint32_t Group::doorbell() const { return header_->doorbell.load(); }

base::Status Group::sleep(std::uint32_t seen) {
  while (!ipc::wait_while_equal(header_->doorbell, seen, kIdleCheck, 0)) TRIMTAB_TRY(check_peers());
  return {};
}

}  // namespace trimtab::engine
