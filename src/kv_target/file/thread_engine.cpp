#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "kv_target/file/io_engine.h"

namespace trimtab::kv_target::file {

namespace {

std::int64_t carry_out(const Io& io) {
  const auto offset = static_cast<off_t>(io.offset);
  for (;;) {
    std::int64_t result = 0;
    if (io.kind == Io::Kind::kSync)
      result = ::fdatasync(io.fd);
    else if (io.kind == Io::Kind::kRead)
      result = ::pread(io.fd, io.memory, io.bytes, offset);
    else
      result = ::pwrite(io.fd, io.memory, io.bytes, offset);
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

/// A few threads that each do one thing at a time: for kernels without io_uring, or with it forbidden.
class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(const EngineOptions& options, std::string why)
      : event_fd_(options.event_fd), why_(std::move(why)) {
    for (std::uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void add(const Io& io) override { added_.push_back(io); }

  void start() override {
    if (added_.empty()) return;
    under_way_ += added_.size();
    {
      const std::lock_guard lock(mutex_);
      todo_.insert(todo_.end(), added_.begin(), added_.end());
    }
    added_.size() == 1 ? wanted_.notify_one() : wanted_.notify_all();
    added_.clear();
  }

  void reap(std::vector<IoDone>& done) override {
    const std::lock_guard lock(mutex_);
    done.insert(done.end(), done_.begin(), done_.end());
    under_way_ -= done_.size();
    done_.clear();
  }

  void wait() override {
    start();
    TRIMTAB_CHECK(under_way_ > 0, "nothing is under way");
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return !done_.empty(); });
  }

  std::string describe() const override { return fmt::format("{} threads ({})", threads_.size(), why_); }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [this] { return ending_ || !todo_.empty(); });
      if (todo_.empty()) return;
      const Io io = todo_.front();
      todo_.pop_front();
      lock.unlock();
      const std::int64_t result = carry_out(io);
      lock.lock();
      done_.push_back({io.token, result});
      const std::uint64_t one = 1;
      // The counter cannot be full: the owner empties it before each reap.
      if (done_.size() == 1) [[maybe_unused]]
        const ssize_t signalled = ::write(event_fd_, &one, sizeof one);
      finished_.notify_one();
    }
  }

  int event_fd_ = -1;
  std::string why_;
  std::vector<Io> added_;        // the owner's
  std::uint64_t under_way_ = 0;  // the owner's
  std::mutex mutex_;
  std::condition_variable wanted_, finished_;
  std::deque<Io> todo_;
  std::vector<IoDone> done_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(const EngineOptions& options, std::string why) {
  return std::make_unique<ThreadEngine>(options, std::move(why));
}

std::unique_ptr<IoEngine> make_engine(const EngineOptions& options) {
  std::string why = "asked for";
  if (options.uring) {
    if (auto engine = make_uring_engine(options, why)) return engine;
  }
  return make_thread_engine(options, std::move(why));
}

}  // namespace trimtab::kv_target::file
