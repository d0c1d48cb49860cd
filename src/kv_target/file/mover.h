#pragma once

#include <deque>
#include <vector>

#include "kv_target/file/directory.h"
#include "kv_target/file/io_engine.h"
#include "kv_target/file/staging.h"
#include "kv_target/file/task.h"

namespace trimtab::kv_target::file {

/// Moves contents between callers' memory and extents: straight where alignment permits (always when the
/// kernel buffers), through staging memory otherwise, in pieces; first come, first served.
class Mover {
 public:
  Mover(IoEngine& engine, const Directory& directory, Staging& staging, std::uint32_t operations_max);

  /// Its extent, bytes and stage are set; `moved` hands it back.
  void start(Task& task);
  /// False when some of it is with the kernel already.
  bool withdraw(Task& task);
  /// Gives the engine what the means permit.
  void pump();
  /// An operation of ours is done: `moved` gets its task when that was the last.
  void on_done(const IoDone& done, std::vector<Task*>& moved);

  std::uint32_t operations() const { return operations_; }
  std::uint64_t bytes_written() const { return bytes_written_; }
  std::uint64_t straight() const { return straight_; }
  std::uint64_t staged() const { return staged_; }
  /// Of the last operation that failed.
  const std::string& trouble() const { return trouble_; }
  void forget_trouble() { trouble_.clear(); }

 private:
  struct Operation {
    Task* task = nullptr;
    Io io;
    std::byte* piece = nullptr;  // of staging memory
    std::uint64_t piece_bytes = 0;
    std::uint64_t first = 0, last = 0;  // bytes of the request that it moves
    std::uint64_t skip = 0;             // bytes of the piece before `first`
    std::uint64_t done = 0;
    int attempts = 0;
  };
  bool issue(Task& task);
  bool plan(const Task& task, Operation& operation);
  void fail(Operation& operation, std::int64_t result);
  bool goes_on(Operation& operation, std::int64_t result);

  IoEngine& engine_;
  const Directory& directory_;
  Staging& staging_;
  std::uint32_t operations_max_ = 0, operations_ = 0;
  std::uint64_t write_unit_ = 0, read_unit_ = 0;  // of direct operations
  std::uint64_t bytes_written_ = 0, straight_ = 0, staged_ = 0;
  std::deque<Task*> queue_;
  std::vector<Operation> table_;
  std::vector<std::uint32_t> free_;
  std::string trouble_;
};

}  // namespace trimtab::kv_target::file
