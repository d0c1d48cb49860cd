#include <fmt/format.h>
#include <liburing.h>

#include <cstring>
#include <deque>

#include "base/check.h"
#include "kv_target/file/io_engine.h"

namespace trimtab::kv_target::file {

namespace {

class UringEngine final : public IoEngine {
 public:
  UringEngine(const io_uring& ring, const EngineOptions& options, std::string registered)
      : ring_(ring), depth_(options.depth), registered_(registered.empty()), words_(std::move(registered)) {}
  ~UringEngine() override {
    TRIMTAB_CHECK(in_flight_ == 0 && waiting_.empty(), "the kernel still writes to our memory");
    io_uring_queue_exit(&ring_);
  }

  void add(const Io& io) override { waiting_.push_back(io); }

  void start() override {
    bool any = false;
    while (!waiting_.empty() && in_flight_ < depth_) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      prepare(*entry, waiting_.front());
      waiting_.pop_front();
      ++in_flight_;
      any = true;
    }
    // What the kernel does not take now (EAGAIN, EBUSY) stays in the ring for the next `start`.
    if (any || io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
  }

  void reap(std::vector<IoDone>& done) override {
    io_uring_cqe* entry = nullptr;
    unsigned head = 0, seen = 0;
    io_uring_for_each_cqe(&ring_, head, entry) {
      done.push_back({entry->user_data, entry->res});
      ++seen;
    }
    io_uring_cq_advance(&ring_, seen);
    in_flight_ -= seen;
  }

  void wait() override {
    start();
    TRIMTAB_CHECK(in_flight_ > 0, "nothing is under way");
    // Refusals (EINTR, EAGAIN for want of memory) pass.
    while (io_uring_cq_ready(&ring_) == 0) io_uring_submit_and_wait(&ring_, 1);
  }

  std::string describe() const override {
    return registered_ ? "io_uring, registered buffers"
                       : fmt::format("io_uring, buffers not registered ({})", words_);
  }

 private:
  void prepare(io_uring_sqe& entry, const Io& io) const {
    const auto bytes = static_cast<unsigned>(io.bytes);
    const bool fixed = io.staged && registered_;
    if (io.kind == Io::Kind::kSync)
      io_uring_prep_fsync(&entry, io.fd, IORING_FSYNC_DATASYNC);
    else if (io.kind == Io::Kind::kRead && fixed)
      io_uring_prep_read_fixed(&entry, io.fd, io.memory, bytes, io.offset, 0);
    else if (io.kind == Io::Kind::kRead)
      io_uring_prep_read(&entry, io.fd, io.memory, bytes, io.offset);
    else if (fixed)
      io_uring_prep_write_fixed(&entry, io.fd, io.memory, bytes, io.offset, 0);
    else
      io_uring_prep_write(&entry, io.fd, io.memory, bytes, io.offset);
    entry.user_data = io.token;
  }

  io_uring ring_;
  std::uint32_t depth_ = 0, in_flight_ = 0;
  bool registered_ = false;
  std::string words_;
  std::deque<Io> waiting_;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(const EngineOptions& options, std::string& why) {
  io_uring ring;
  // The completion queue is twice as long as the depth, so that it never overflows.
  // What is done is told when this thread enters the kernel, which it does to ask: otherwise the kernel
  // interrupts it for every read of a file system whose reads its own threads do. Kernels before 5.19 always
  // do.
  int error = io_uring_queue_init(options.depth, &ring, IORING_SETUP_COOP_TASKRUN);
  if (error == -EINVAL) error = io_uring_queue_init(options.depth, &ring, 0);
  if (error < 0) {
    why = fmt::format("io_uring: {}", std::strerror(-error));
    return nullptr;
  }
  error = io_uring_register_eventfd(&ring, options.event_fd);
  if (error < 0) {
    why = fmt::format("io_uring has no event descriptor: {}", std::strerror(-error));
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  std::string refused = "not asked for";
  if (options.registered) {
    const iovec region{options.staging.data(), options.staging.size()};
    error = io_uring_register_buffers(&ring, &region, 1);
    refused = error < 0 ? std::strerror(-error) : "";
  }
  return std::make_unique<UringEngine>(ring, options, refused);
}

}  // namespace trimtab::kv_target::file
