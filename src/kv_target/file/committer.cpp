#include "kv_target/file/committer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/check.h"

namespace trimtab::kv_target::file {

namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kWriteBytesMax = 1U << 30;
/// Of the log's room, kept for erases: a full disk must not keep anyone from making room.
constexpr std::uint64_t kErasesReserveBytes = 1024 * kRecordBytes;

std::uint64_t pages(std::uint64_t from, std::uint64_t to) {
  return ((to + kPageBytes - 1) / kPageBytes - from / kPageBytes) * kPageBytes;
}

}  // namespace

Committer::Committer(IoEngine& engine, Directory& directory, ExtentAllocator& allocator, Live live,
                     std::uint64_t log_slack)
    : engine_(engine),
      directory_(directory),
      allocator_(allocator),
      live_(std::move(live)),
      log_slack_(log_slack) {}

void Committer::join(Task& task) {
  task.batch = open_;
  batches_[open_].tasks.push_back(&task);
  if (task.request.verb == Verb::kWrite) ++batches_[open_].unmoved;
}

void Committer::moved(Task& task) { --batches_[task.batch].unmoved; }

bool Committer::advance(std::uint64_t shards) {
  ended_.clear();
  while (operations_ == 0) {
    switch (stage_) {
      case Stage::kIdle:
        if (directory_.log().records() > 2 * shards + log_slack_ + log_patience_) {
          begin_draft(Stage::kIdle);
          break;
        }
        if (batches_[open_].tasks.empty()) return false;
        open_ ^= 1U;
        stage_ = Stage::kContents;
        break;
      case Stage::kContents:
        if (closed().unmoved > 0) return false;
        sync_contents();
        break;
      case Stage::kContentsSync:
        if (error_ != 0) {
          trouble_ = fmt::format("syncing an extent file: {}", std::strerror(error_));
          fail_puts(closed(), Outcome::kFailed);
          // The kernel tells of lost pages once: contents of the next batch may be among them.
          fail_puts(batches_[open_], Outcome::kFailed);
        }
        doubtful_ ? begin_draft(Stage::kLog) : append();
        break;
      case Stage::kLog:
        if (error_ != 0) {
          fail(system_error("writing the log", error_).value(), true);
          break;
        }
        stage_ = Stage::kLogSync;
        sync(directory_.log().fd());
        break;
      case Stage::kLogSync:
        if (error_ != 0) {
          fail(system_error("syncing the log", error_).value(), true);
          break;
        }
        directory_.log().appended(records_ahead_);
        ++commits_;
        trouble_.clear();
        end_batch();
        break;
      case Stage::kDraft:
        if (error_ != 0) {
          end_draft(false);
          break;
        }
        stage_ = Stage::kDraftSync;
        sync(draft_->file.get());
        break;
      case Stage::kDraftSync:
        end_draft(error_ == 0);
        break;
    }
    if (!ended_.empty()) return true;
  }
  return false;
}

void Committer::sync_contents() {
  stage_ = Stage::kContentsSync;
  error_ = 0;
  std::set<std::size_t> files;
  for (const Task* task : closed().tasks) {
    if (task->request.verb == Verb::kWrite && task->outcome == Outcome::kDone)
      files.insert(directory_.file_of(task->extent.unit));
  }
  for (const std::size_t file : files) sync(directory_.fd(file));
}

void Committer::append() {
  std::vector<std::byte> bytes;
  std::uint64_t puts = 0, erases = 0;
  for (const Task* task : closed().tasks) {
    if (task->outcome != Outcome::kDone) continue;
    ++(task->request.verb == Verb::kWrite ? puts : erases);
  }
  take_log_room(puts, erases);
  records_ahead_ = 0;
  for (Task* task : closed().tasks) {
    if (task->outcome != Outcome::kDone) continue;
    const bool put = task->request.verb == Verb::kWrite;
    task->in_log = true;
    directory_.log().encode(put ? RecordKind::kPut : RecordKind::kErase, {task->request.name, task->extent},
                            records_ahead_++, bytes);
  }
  if (bytes.empty()) return end_batch();
  stage_ = Stage::kLog;
  const std::uint64_t at = directory_.log().end();
  bytes_written_ += pages(at, at + bytes.size());
  write(directory_.log().fd(), std::move(bytes), at);
}

/// Room for the records of a batch. When the disk has none, puts fail, and erases use what is kept for them.
void Committer::take_log_room(std::uint64_t puts, std::uint64_t erases) {
  const std::uint64_t needed = (puts + erases) * kRecordBytes;
  const auto room = directory_.log().make_room(needed + (puts > 0 ? kErasesReserveBytes : 0));
  if (room) return;
  const bool full = room.error().code == base::Code::kResourceExhausted;
  trouble_ = room.error().message;
  fail_puts(closed(), full ? Outcome::kFull : Outcome::kFailed);
  if (directory_.log().room_left() >= erases * kRecordBytes) return;
  for (Task* task : closed().tasks)
    if (task->outcome == Outcome::kDone) task->outcome = Outcome::kFailed;
}

void Committer::fail_puts(Batch& batch, Outcome outcome) {
  for (Task* task : batch.tasks) {
    const bool begun = task->stage == Task::Stage::kMoving || task->stage == Task::Stage::kMoved;
    if (begun && task->request.verb == Verb::kWrite && task->outcome == Outcome::kDone)
      task->outcome = outcome;
  }
}

/// The whole batch. `doubtful`: some of its records may be in the log, now or after a crash.
void Committer::fail(base::Error error, bool doubtful) {
  const bool full = error.code == base::Code::kResourceExhausted;
  trouble_ = std::move(error.message);
  doubtful_ = doubtful_ || doubtful;
  for (Task* task : closed().tasks) {
    if (task->outcome != Outcome::kDone) continue;
    const bool put = task->request.verb == Verb::kWrite;
    task->outcome = full && put ? Outcome::kFull : Outcome::kFailed;
    if (put && task->in_log)
      quarantine_.emplace_back(task->extent.unit, directory_.layout().units_of(task->extent.bytes));
  }
  end_batch();
}

void Committer::end_batch() {
  ended_ = std::move(closed().tasks);
  closed().tasks.clear();
  stage_ = Stage::kIdle;
}

void Committer::begin_draft(Stage afterwards) {
  afterwards_ = afterwards;
  auto draft = directory_.log().draft(live_());
  if (!draft) {
    trouble_ = draft.error().message;
    draft_.reset();
    return end_draft(false);
  }
  draft_ = std::move(*draft);
  stage_ = Stage::kDraft;
  bytes_written_ += pages(0, draft_->image.size());
  write(draft_->file.get(), std::move(draft_->image), 0);
}

void Committer::end_draft(bool written) {
  bool fine = written;
  if (draft_ && !written) trouble_ = fmt::format("writing a new log: {}", std::strerror(error_));
  if (written) {
    const auto adopted = directory_.log().adopt(std::move(*draft_));
    fine = adopted.has_value();
    if (!fine) trouble_ = adopted.error().message;
  }
  draft_.reset();
  bytes_.clear();
  doubtful_ = fine ? false : doubtful_ || directory_.log().uncertain();
  if (fine) {
    ++rewrites_;
    log_patience_ = 0;
    for (const auto& [unit, units] : quarantine_) allocator_.give(unit, units);
    quarantine_.clear();
  } else {
    // The old log still serves; the next attempt comes after as many records again.
    log_patience_ += 64 + log_slack_ + directory_.log().records() / 2;
  }
  stage_ = Stage::kIdle;
  if (afterwards_ == Stage::kIdle) return;
  if (fine)
    append();
  else
    fail({base::Code::kIo, trouble_, "kv_target"}, false);
}

void Committer::write(int fd, std::vector<std::byte> bytes, std::uint64_t offset) {
  bytes_ = std::move(bytes);
  error_ = 0;
  io_ = {Io::Kind::kWrite, false, fd, bytes_.data(), bytes_.size(), offset, kTokens};
  Io first = io_;
  first.bytes = std::min(first.bytes, kWriteBytesMax);
  ++operations_;
  engine_.add(first);
}

void Committer::sync(int fd) {
  ++operations_;
  ++syncs_;
  engine_.add({Io::Kind::kSync, false, fd, nullptr, 0, 0, kTokens + 1});
}

void Committer::on_done(const IoDone& done) {
  --operations_;
  const bool again = done.result == -EINTR || done.result == -EAGAIN;
  if (done.token == kTokens + 1) {
    if (done.result < 0) error_ = static_cast<int>(-done.result);
    return;
  }
  if (done.result <= 0 && !again) {
    error_ = done.result == 0 ? ENOSPC : static_cast<int>(-done.result);
    return;
  }
  const std::uint64_t moved = again ? 0 : static_cast<std::uint64_t>(done.result);
  io_.memory += moved;
  io_.bytes -= moved;
  io_.offset += moved;
  if (io_.bytes == 0) return;
  Io rest = io_;
  rest.bytes = std::min(rest.bytes, kWriteBytesMax);
  ++operations_;
  engine_.add(rest);
}

}  // namespace trimtab::kv_target::file
