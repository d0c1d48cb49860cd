#include "kv_target/file_target.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace trimtab::kv_target {

using file::Lane;
using file::Task;

namespace {

constexpr int kRounds = 8;
/// Asking a full disk for room takes long; only now and then one of the writes that it refuses asks anew.
constexpr std::uint32_t kRefusalsPerGrowth = 63;
constexpr std::uint64_t kShardBytesMax = ~std::uint32_t{0};

std::uint64_t random_epoch() {
  std::uint64_t epoch = 0;
  const ssize_t got = getrandom(&epoch, sizeof epoch, 0);
  TRIMTAB_CHECK(got == sizeof epoch, "no random number for an epoch");
  return epoch | 1U;  // zero is the cursor of somebody who knows nothing
}

base::Status check(const FileTarget::Options& options) {
  const file::Layout& layout = options.layout;
  const bool power = layout.unit_bytes >= 512 && layout.unit_bytes <= (1U << 20) &&
                     (layout.unit_bytes & (layout.unit_bytes - 1)) == 0;
  if (!power || layout.file_bytes < layout.unit_bytes || layout.file_bytes % layout.unit_bytes != 0) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("units of {} bytes in extent files of {} bytes: units must be a power of two "
                    "from 512 to 1048576, and files whole units",
                    layout.unit_bytes, layout.file_bytes),
        "kv_target");
  }
  if (options.capacity_bytes < layout.unit_bytes || options.shard_bytes == 0 || options.depth == 0 ||
      options.threads == 0 || options.depth > 4096) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("a target of {} bytes for shards of {} with {} operations at once by {} threads: each "
                    "must be positive, the capacity a unit ({}) at least, the operations 4096 at most",
                    options.capacity_bytes, options.shard_bytes, options.depth, options.threads,
                    layout.unit_bytes),
        "kv_target");
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<FileTarget>> FileTarget::open(Options options) {
  TRIMTAB_TRY(check(options));
  options.shard_bytes = std::min({options.shard_bytes, options.layout.file_bytes, kShardBytesMax});
  auto directory = file::Directory::open({options.directory, options.capacity_bytes, options.layout,
                                          options.direct, options.on_step, options.owner_patience});
  if (!directory) return tl::unexpected(directory.error());
  std::unique_ptr<FileTarget> target(new FileTarget(std::move(options), std::move(*directory)));
  TRIMTAB_TRY(target->start());
  return target;
}

FileTarget::FileTarget(Options options, file::Directory directory)
    : options_(std::move(options)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      directory_(std::move(directory)),
      staging_(options_.staging_bytes),
      allocator_(directory_.layout().units_per_file()),
      feed_(random_epoch()) {}

base::Status FileTarget::start() {
  if (event_.get() < 0) return file::system_error("no event descriptor", errno);
  file::EngineOptions engine{options_.uring,   options_.registered, options_.depth,
                             options_.threads, staging_.region(),   event_.get()};
  engine_ = file::make_engine(engine);
  if (options_.wrap_engine) engine_ = options_.wrap_engine(std::move(engine_));
  mover_ = std::make_unique<file::Mover>(*engine_, directory_, staging_, options_.depth);
  const auto live = [this] {
    std::vector<file::LogEntry> entries;
    entries.reserve(index_.size());
    for (const auto& [name, extent] : index_.entries()) entries.push_back({name, extent});
    return entries;
  };
  committer_ = std::make_unique<file::Committer>(*engine_, directory_, allocator_, live, options_.log_slack);
  directory_.add_room_to(allocator_);
  for (const file::LogEntry& entry : directory_.take_recovered()) {
    const std::uint64_t units = directory_.layout().units_of(entry.extent.bytes);
    const bool free = allocator_.take_at(entry.extent.unit, units);
    TRIMTAB_CHECK(free, "the log gives two shards one place");
    index_.add(entry.name) = entry.extent;
    feed_.put(entry.name, static_cast<std::uint32_t>(entry.extent.bytes));
    units_used_ += units;
  }
  return {};
}

FileTarget::~FileTarget() {
  while (mover_ && mover_->operations() + committer_->operations() > 0) {
    engine_->wait();
    reap();
  }
}

void FileTarget::reap() {
  reaped_.clear();
  moved_.clear();
  engine_->reap(reaped_);
  for (const file::IoDone& done : reaped_) {
    if (done.token >= file::Committer::kTokens)
      committer_->on_done(done);
    else
      mover_->on_done(done, moved_);
  }
}

void FileTarget::signal() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t signalled = ::write(event_.get(), &one, sizeof one);
}

Task& FileTarget::new_task(const Request& request) {
  if (free_tasks_.empty()) {
    tasks_.push_back(std::make_unique<Task>());
    free_tasks_.push_back(tasks_.back().get());
  }
  Task& task = *free_tasks_.back();
  free_tasks_.pop_back();
  task = Task{};
  task.request = request;
  return task;
}

void FileTarget::submit(std::span<const Request> requests) {
  index_.prefetch(requests);
  for (const Request& request : requests) admit(request);
  pump();
  if (!done_.empty()) signal();
}

void FileTarget::admit(const Request& request) {
  Task& task = new_task(request);
  Lane*& place = lanes_.add(request.name);
  if (place == nullptr) {
    if (free_lanes_.empty()) {
      all_lanes_.push_back(std::make_unique<Lane>());
      free_lanes_.push_back(all_lanes_.back().get());
    }
    place = free_lanes_.back();
    free_lanes_.pop_back();
    place->name = request.name;
  }
  Lane& lane = *place;
  task.lane = &lane;
  (lane.last != nullptr ? lane.last->behind : lane.first) = &task;
  lane.last = &task;
  drain(lane);
}

void FileTarget::drain(Lane& lane) {
  while (lane.first != nullptr && !lane.writer) {
    Task& task = *lane.first;
    const bool reads = task.request.verb == Verb::kRead;
    if (!reads && lane.readers > 0) break;
    lane.first = task.behind;
    if (lane.first == nullptr) lane.last = nullptr;
    if (!begin(task)) continue;
    reads ? void(++lane.readers) : void(lane.writer = true);
  }
  if (lane.first != nullptr || lane.readers > 0 || lane.writer) return;
  lanes_.erase(lane.name);
  free_lanes_.push_back(&lane);
}

bool FileTarget::begin(Task& task) {
  bool holds = false;
  switch (task.request.verb) {
    case Verb::kRead:
      holds = begin_read(task);
      break;
    case Verb::kWrite:
      holds = begin_write(task);
      break;
    case Verb::kErase: {
      const file::Extent* held = index_.find(task.request.name);
      holds = held != nullptr;
      if (!holds) {
        task.outcome = Outcome::kMissing;
        break;
      }
      task.extent = *held;
      task.stage = Task::Stage::kMoved;
      committer_->join(task);
      break;
    }
  }
  if (!holds) answer(task);
  return holds;
}

bool FileTarget::begin_read(Task& task) {
  const file::Extent* held = index_.find(task.request.name);
  if (held == nullptr) {
    task.outcome = Outcome::kMissing;
    return false;
  }
  task.extent = *held;
  if (task.request.offset > task.extent.bytes) {
    task.outcome = Outcome::kTooLarge;
    return false;
  }
  task.bytes = std::min<std::uint64_t>(task.request.buffer.size(), task.extent.bytes - task.request.offset);
  if (task.bytes == 0) return false;
  mover_->start(task);
  return true;
}

bool FileTarget::begin_write(Task& task) {
  const auto content = task.request.content;
  if (content.empty() || content.size() > options_.shard_bytes) {
    task.outcome = Outcome::kTooLarge;
    return false;
  }
  const std::uint64_t units = directory_.layout().units_of(content.size());
  if (!find_room(units, task)) return false;
  task.bytes = task.extent.bytes = content.size();
  task.extent.checksum = file::content_checksum(task.request.name, content);
  units_used_ += units;
  committer_->join(task);
  mover_->start(task);
  return true;
}

bool FileTarget::find_room(std::uint64_t units, Task& task) {
  const std::uint64_t capacity = options_.capacity_bytes / directory_.layout().unit_bytes;
  task.outcome = Outcome::kFull;
  if (units_used_ + units > capacity) return false;
  for (;;) {
    if (const auto unit = allocator_.take(units)) {
      task.extent.unit = *unit;
      task.outcome = Outcome::kDone;
      trouble_.clear();
      return true;
    }
    if (refusals_until_growth_ > 0) {
      --refusals_until_growth_;
      return false;
    }
    const auto grown = directory_.grow(allocator_);
    if (grown && *grown) continue;
    if (!grown) {
      trouble_ = grown.error().message;
      disk_full_ = grown.error().code == base::Code::kResourceExhausted;
      if (disk_full_)
        refusals_until_growth_ = kRefusalsPerGrowth;
      else
        task.outcome = Outcome::kFailed;
    }
    return false;
  }
}

/// Its content has been moved, or could not be.
void FileTarget::moved(Task& task) {
  if (task.request.verb == Verb::kWrite) return committer_->moved(task);
  const bool whole = task.request.offset == 0 && task.bytes == task.extent.bytes;
  if (task.outcome == Outcome::kDone && whole &&
      file::content_checksum(task.request.name, task.request.buffer.first(task.bytes)) !=
          task.extent.checksum)
    task.outcome = Outcome::kDamaged;
  damaged_ += task.outcome == Outcome::kDamaged;
  if (task.outcome == Outcome::kDone) mover_->forget_trouble();
  leave(task);
}

/// Its batch has ended.
void FileTarget::ended(Task& task) {
  const file::Layout& layout = directory_.layout();
  const ShardName& name = task.request.name;
  const bool writes = task.request.verb == Verb::kWrite;
  const std::uint64_t units = layout.units_of(task.extent.bytes);
  if (task.outcome == Outcome::kDone) {
    if (const file::Extent* held = index_.find(name)) {
      const std::uint64_t old_units = layout.units_of(held->bytes);
      allocator_.give(held->unit, old_units);
      units_used_ -= old_units;
    }
    if (writes) {
      index_.add(name) = task.extent;
      feed_.put(name, static_cast<std::uint32_t>(task.extent.bytes));
      caller_bytes_written_ += task.extent.bytes;
    } else {
      index_.erase(name);
      feed_.erased(name);
    }
  } else if (writes) {
    units_used_ -= units;
    if (!task.in_log) allocator_.give(task.extent.unit, units);
  }
  leave(task);
}

void FileTarget::leave(Task& task) {
  Lane& lane = *task.lane;
  task.request.verb == Verb::kRead ? void(--lane.readers) : void(lane.writer = false);
  answer(task);
  drain(lane);
}

void FileTarget::answer(Task& task) {
  const bool done = task.outcome == Outcome::kDone;
  done_.push_back({task.request.tag, task.outcome, done ? task.bytes : 0});
  task.stage = Task::Stage::kFree;
  free_tasks_.push_back(&task);
}

void FileTarget::pump() {
  while (committer_->advance(index_.size())) {
    for (Task* task : committer_->ended()) ended(*task);
  }
  mover_->pump();
  engine_->start();
}

std::size_t FileTarget::poll(std::vector<Completion>& completed) {
  std::uint64_t signals = 0;
  // Before the reaping: what is done later signals again.
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &signals, sizeof signals);
  // What the page cache has is done as soon as it is started: a few rounds spare their owner as many waits.
  for (int round = 0; round < kRounds && (round == 0 || !reaped_.empty()); ++round) {
    reap();
    for (Task* task : moved_) moved(*task);
    pump();
  }
  const std::size_t count = done_.size();
  completed.insert(completed.end(), done_.begin(), done_.end());
  done_.clear();
  return count;
}

void FileTarget::cancel(std::uint64_t tag) {
  // Rare, and tasks are as many as were ever under way at once: no table has to be kept for it.
  const auto found = std::ranges::find_if(tasks_, [tag](const std::unique_ptr<Task>& one) {
    return one->stage != Task::Stage::kFree && one->request.tag == tag;
  });
  if (found == tasks_.end()) return;
  Task& task = **found;
  const bool writes = task.request.verb == Verb::kWrite;
  if (task.stage == Task::Stage::kWaiting) {
    Lane& lane = *task.lane;
    Task* before = nullptr;
    for (Task* at = lane.first; at != &task; at = at->behind) before = at;
    (before != nullptr ? before->behind : lane.first) = task.behind;
    if (lane.last == &task) lane.last = before;
    task.outcome = Outcome::kCancelled;
    answer(task);
  } else if (task.stage == Task::Stage::kQueued && mover_->withdraw(task)) {
    task.outcome = Outcome::kCancelled;
    writes ? committer_->moved(task) : leave(task);
  } else if (task.request.verb != Verb::kRead && committer_->open(task)) {
    task.outcome = Outcome::kCancelled;  // it leaves with its batch
  }
  pump();
  if (!done_.empty()) signal();
}

}  // namespace trimtab::kv_target
