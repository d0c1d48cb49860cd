#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "base/prng.h"
#include "kv_target/file/io_engine.h"

namespace trimtab::kv_target::file::testing {

/// A disk that loses its power: what was written is in nobody's hands until its file is synced, and of what
/// was not, a cut keeps any of the sectors and drops the others. Operations are done in any order, and their
/// ends are told late and in any order. At operation number `cut_at` the power goes: nothing is done from
/// then on. Files must not be opened with O_DIRECT.
class PowerCutEngine final : public IoEngine {
 public:
  struct Options {
    std::uint64_t seed = 0, cut_at = ~std::uint64_t{0};
    bool ignores_syncs = false;        // to prove that tests notice
    std::uint64_t failure_one_in = 0;  // writes and syncs that fail, in pieces; 0: none
    int event_fd = -1;
  };
  explicit PowerCutEngine(Options options) : options_(options), prng_(options.seed, 77) {}
  ~PowerCutEngine() override {
    for (auto& [inode, disk_file] : files_) {
      for (const Write& write : disk_file.unsynced) keep_some(disk_file.fd, write);
      ::close(disk_file.fd);
    }
  }

  void add(const Io& io) override { added_.push_back(io); }
  void start() override {
    while (!added_.empty()) {
      std::swap(added_[prng_.below(added_.size())], added_.back());
      const Io io = added_.back();
      added_.pop_back();
      ready_.push_back({io.token, carry_out(io)});
    }
    if (!ready_.empty()) signal();
  }
  void reap(std::vector<IoDone>& done) override {
    for (std::uint64_t some = ready_.empty() ? 0 : 1 + prng_.below(ready_.size()); some > 0; --some) {
      std::swap(ready_[prng_.below(ready_.size())], ready_.back());
      done.push_back(ready_.back());
      ready_.pop_back();
    }
    if (!ready_.empty()) signal();
  }
  void wait() override { start(); }
  std::string describe() const override { return "a disk that loses its power"; }
  bool cut() const { return operations_ >= options_.cut_at; }

 private:
  struct Write {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  struct File {
    int fd = -1;
    std::vector<Write> unsynced;
  };
  std::int64_t carry_out(const Io& io) {
    if (operations_++ >= options_.cut_at) return -EIO;
    if (options_.failure_one_in > 0 && io.kind != Io::Kind::kRead &&
        prng_.below(options_.failure_one_in) == 0) {
      File& hurt = file_of(io.fd);
      if (io.kind == Io::Kind::kWrite) {
        hurt.unsynced.push_back({io.offset, {io.memory, io.memory + io.bytes / 2}});
      } else {
        // As Linux has it: a failed sync is told once, and what it was to save is forgotten.
        for (const Write& write : hurt.unsynced) keep_some(hurt.fd, write);
        hurt.unsynced.clear();
      }
      return prng_.below(2) == 0 ? -EIO : -ENOSPC;
    }
    if (io.kind == Io::Kind::kSync) {
      if (!options_.ignores_syncs) sync(file_of(io.fd));
      return 0;
    }
    // Now and then the kernel moves less than it was asked to.
    const std::uint64_t bytes = prng_.below(8) == 0 ? 1 + prng_.below(io.bytes) : io.bytes;
    if (io.kind == Io::Kind::kWrite) {
      file_of(io.fd).unsynced.push_back({io.offset, {io.memory, io.memory + bytes}});
      return static_cast<std::int64_t>(bytes);
    }
    const ssize_t got = pread(io.fd, io.memory, bytes, static_cast<off_t>(io.offset));
    for (const Write& write : file_of(io.fd).unsynced) overlay(write, io.memory, io.offset, bytes);
    return got < 0 ? -errno : got;
  }
  /// By inode: its owner may close a file, and have the number for another one.
  File& file_of(int fd) {
    struct stat info {};
    if (fstat(fd, &info) != 0) std::abort();
    File& found = files_[info.st_ino];
    if (found.fd < 0) found.fd = ::dup(fd);
    return found;
  }
  static void overlay(const Write& write, std::byte* memory, std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t begin = std::max(offset, write.offset);
    const std::uint64_t end = std::min(offset + bytes, write.offset + write.bytes.size());
    if (begin < end) std::memcpy(memory + (begin - offset), &write.bytes[begin - write.offset], end - begin);
  }
  static void sync(File& disk_file) {
    for (const Write& write : disk_file.unsynced)
      put(disk_file.fd, write.offset, write.bytes.data(), write.bytes.size());
    disk_file.unsynced.clear();
  }
  void keep_some(int fd, const Write& write) {
    const std::uint64_t of_four = prng_.below(5);  // none of its sectors to all
    for (std::uint64_t at = 0; at < write.bytes.size();) {
      const std::uint64_t sector_end = (write.offset + at) / 512 * 512 + 512 - write.offset;
      const std::uint64_t end = std::min<std::uint64_t>(write.bytes.size(), sector_end);
      if (prng_.below(4) < of_four) put(fd, write.offset + at, &write.bytes[at], end - at);
      at = end;
    }
  }
  static void put(int fd, std::uint64_t offset, const std::byte* bytes, std::uint64_t count) {
    if (pwrite(fd, bytes, count, static_cast<off_t>(offset)) != static_cast<ssize_t>(count)) std::abort();
  }
  void signal() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t signalled = ::write(options_.event_fd, &one, sizeof one);
  }

  Options options_;
  base::Prng prng_;
  std::uint64_t operations_ = 0;
  std::vector<Io> added_;
  std::vector<IoDone> ready_;
  std::map<ino_t, File> files_;
};

}  // namespace trimtab::kv_target::file::testing
