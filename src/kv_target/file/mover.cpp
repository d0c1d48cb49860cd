#include "kv_target/file/mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace trimtab::kv_target::file {

namespace {

constexpr std::uint64_t kStraightBytesMax = 4U << 20;
constexpr std::uint64_t kPieceBytesMax = 256U << 10;
/// Up to here one operation through staging memory is cheaper than two, one of them straight.
constexpr std::uint64_t kCopyBytesMax = 64U << 10;
constexpr int kAttemptsMax = 16;

bool aligned(const void* memory, std::uint64_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % to == 0;
}

}  // namespace

Mover::Mover(IoEngine& engine, const Directory& directory, Staging& staging, std::uint32_t operations_max)
    : engine_(engine),
      directory_(directory),
      staging_(staging),
      operations_max_(operations_max),
      write_unit_(directory.layout().unit_bytes),
      read_unit_(directory.read_unit_bytes()) {}

void Mover::start(Task& task) {
  task.stage = Task::Stage::kQueued;
  task.next = 0;
  queue_.push_back(&task);
}

bool Mover::withdraw(Task& task) {
  if (task.stage != Task::Stage::kQueued) return false;
  std::erase(queue_, &task);
  task.stage = Task::Stage::kMoved;
  return true;
}

void Mover::pump() {
  while (!queue_.empty() && operations_ < operations_max_) {
    Task& task = *queue_.front();
    if (!issue(task)) return;
    if (task.next == task.bytes) queue_.pop_front();
  }
}

/// The next operation of a task; false when there is no staging memory for it at present.
bool Mover::plan(const Task& task, Operation& operation) {
  const bool writes = task.request.verb == Verb::kWrite;
  const std::uint64_t unit = writes ? write_unit_ : read_unit_;
  const std::uint64_t base = writes ? 0 : task.request.offset;  // of the request in the shard
  const std::uint64_t at = base + task.next, left = task.bytes - task.next;
  auto* memory = writes ? const_cast<std::byte*>(task.request.content.data()) : task.request.buffer.data();
  memory += task.next;
  std::uint64_t begin = at, length = 0;  // in the shard, of what the kernel moves
  // The last unit may be read beyond the shard's end where the reader's memory has room for it.
  const std::uint64_t padded = (left + unit - 1) / unit * unit;
  const bool room = !writes && task.request.buffer.size() - task.next >= padded;
  const bool fits = at % unit == 0 && aligned(memory, unit) &&
                    (room || (left >= unit && (left % unit == 0 || left > kCopyBytesMax)));
  if (!directory_.direct() || fits) {
    length = std::min(directory_.direct() && room ? padded : left, kStraightBytesMax);
    if (directory_.direct()) length -= length % unit;
    operation.last = task.next + std::min(length, left);
    operation.io.memory = memory;
    ++straight_;
  } else {
    begin = at / unit * unit;
    const std::uint64_t most =
        std::max(unit, std::min<std::uint64_t>(kPieceBytesMax, staging_.piece_bytes_max()) / unit * unit);
    const std::uint64_t end = std::min(at + left, begin + most);
    length = (end - begin + unit - 1) / unit * unit;
    operation.piece = staging_.take(length);
    if (operation.piece == nullptr) return false;
    operation.piece_bytes = length;
    operation.skip = at - begin;
    operation.last = task.next + (end - at);
    operation.io.memory = operation.piece;
    operation.io.staged = true;
    if (writes) {
      std::memcpy(operation.piece, memory, end - at);
      std::memset(operation.piece + (end - at), 0, length - (end - at));
    }
    ++staged_;
  }
  operation.first = task.next;
  operation.io.kind = writes ? Io::Kind::kWrite : Io::Kind::kRead;
  operation.io.fd = directory_.fd(directory_.file_of(task.extent.unit));
  operation.io.offset = directory_.offset_of(task.extent.unit) + begin;
  operation.io.bytes = length;
  return true;
}

bool Mover::issue(Task& task) {
  Operation operation;
  operation.task = &task;
  if (!plan(task, operation)) return false;
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(table_.size()));
    table_.emplace_back();
  }
  operation.io.token = free_.back();
  free_.pop_back();
  table_[operation.io.token] = operation;
  task.next = operation.last;
  task.stage = Task::Stage::kMoving;
  ++task.operations;
  ++operations_;
  if (operation.io.kind == Io::Kind::kWrite) bytes_written_ += operation.io.bytes;
  engine_.add(operation.io);
  return true;
}

void Mover::fail(Operation& operation, std::int64_t result) {
  Task& task = *operation.task;
  const bool writes = operation.io.kind == Io::Kind::kWrite;
  if (result == 0 && !writes) {
    // Beyond the end of the file: somebody cut it.
    task.outcome = Outcome::kDamaged;
  } else {
    const int reason = result == 0 ? ENOSPC : static_cast<int>(-result);
    const bool full = writes && (reason == ENOSPC || reason == EDQUOT);
    task.outcome = full ? Outcome::kFull : Outcome::kFailed;
    trouble_ = fmt::format("{} an extent file: {}", writes ? "writing" : "reading", std::strerror(reason));
  }
  if (task.next < task.bytes) {
    std::erase(queue_, &task);
    task.next = task.bytes;
  }
}

/// True when the rest of it is with the engine again: the kernel may move less than it was asked to.
bool Mover::goes_on(Operation& operation, std::int64_t result) {
  const std::uint64_t needed = operation.skip + (operation.last - operation.first);
  if (result == -EINTR || result == -EAGAIN) {
    if (++operation.attempts > kAttemptsMax) {
      fail(operation, result);
      return false;
    }
  } else if (result <= 0) {
    fail(operation, result);
    return false;
  } else {
    auto moved = static_cast<std::uint64_t>(result);
    const bool writes = operation.io.kind == Io::Kind::kWrite;
    if (operation.done + moved >= (writes ? operation.done + operation.io.bytes : needed)) return false;
    // Direct operations go on at whole units only; less than one more is the end of the file.
    if (directory_.direct()) moved -= moved % (writes ? write_unit_ : read_unit_);
    if (moved == 0) {
      fail(operation, writes ? -EIO : 0);
      return false;
    }
    operation.done += moved;
    operation.io.memory += moved;
    operation.io.offset += moved;
    operation.io.bytes -= moved;
  }
  engine_.add(operation.io);
  return true;
}

void Mover::on_done(const IoDone& done, std::vector<Task*>& moved) {
  Operation& operation = table_[done.token];
  if (goes_on(operation, done.result)) return;
  Task& task = *operation.task;
  if (operation.piece != nullptr) {
    if (operation.io.kind == Io::Kind::kRead && task.outcome == Outcome::kDone) {
      std::memcpy(task.request.buffer.data() + operation.first, operation.piece + operation.skip,
                  operation.last - operation.first);
    }
    staging_.give(operation.piece, operation.piece_bytes);
  }
  free_.push_back(static_cast<std::uint32_t>(done.token));
  --operations_;
  if (--task.operations > 0 || task.next < task.bytes) return;
  task.stage = Task::Stage::kMoved;
  moved.push_back(&task);
}

}  // namespace trimtab::kv_target::file
