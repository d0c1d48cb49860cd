#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "kv_remote/net/frame.h"

namespace trimtab::kv_remote {

enum class ZeroCopy : std::uint8_t {
  kAuto,    // where the kernel offers it, until it says that it copied after all (as on loopback)
  kAlways,  // also then: for tests
  kNever,
};

struct SendStats {
  std::uint64_t bytes = 0;
  std::uint64_t zero_copy_sends = 0;    // sent straight from where the content lies
  std::uint64_t zero_copy_copied = 0;   // of those: the kernel copied nevertheless
  std::uint64_t zero_copy_refused = 0;  // the kernel had no room for it, and got an ordinary send

  SendStats& operator+=(const SendStats& more) {
    bytes += more.bytes;
    zero_copy_sends += more.zero_copy_sends;
    zero_copy_copied += more.zero_copy_copied;
    zero_copy_refused += more.zero_copy_refused;
    return *this;
  }
};

/// Frames on their way out of one connection. Contents are sent from where they lie: they must stay until
/// `released` names their token. Large ones go out with MSG_ZEROCOPY, whose memory the kernel may read until
/// it has said otherwise through the socket's error queue; small ones are gathered into one sendmsg, which
/// copies.
class SendQueue {
 public:
  /// Contents from this size on are worth the bookkeeping that zero copy costs (page pinning, one
  /// notification).
  static constexpr std::size_t kZeroCopyBytesMin = 32U << 10;

  /// Asks the kernel for zero copy on `fd`, a connected socket.
  void start(int fd, ZeroCopy mode);
  /// Completes `header` (length, checksum of the content) and queues it. `owned`: memory that goes with the
  /// frame and is freed when it is released.
  void push(Header header, std::span<const std::byte> content = {}, std::uint64_t token = 0,
            std::unique_ptr<std::byte[]> owned = nullptr);
  /// The same for content that stays nowhere: a copy goes with the frame.
  void push_copy(Header header, std::span<const std::byte> content, std::uint64_t token = 0);
  /// Sends what the socket takes; false when the connection is broken (errno says why).
  bool flush();
  /// Reads what the kernel says about zero copies. To be called on EPOLLERR and before `released`.
  void read_notifications();
  /// Tokens (other than 0) of frames whose bytes nobody needs any more, in the order of sending.
  std::vector<std::uint64_t> released();
  bool blocked() const { return next_ < frames_.size(); }  // waits for the socket to take more
  bool empty() const { return frames_.empty(); }
  const SendStats& stats() const { return stats_; }

 private:
  struct Frame {
    HeaderBytes header;
    std::span<const std::byte> content;
    std::uint64_t token = 0;
    std::unique_ptr<std::byte[]> owned;
    std::uint64_t zero_copies = 0;  // so many must be complete before it can go
  };
  std::int64_t send_some();
  void advance(std::size_t bytes, bool zero_copy);
  void completed(std::uint32_t low, std::uint32_t high);

  int fd_ = -1;
  ZeroCopy mode_ = ZeroCopy::kAuto;
  bool zero_copy_ = false;
  std::deque<Frame> frames_;
  std::size_t next_ = 0, sent_ = 0;  // first frame that is not wholly sent, and how much of it is
  std::uint64_t frame_number_ = 0;
  std::uint64_t zero_copies_ = 0, zero_copies_done_ = 0;
  std::map<std::uint64_t, std::uint64_t> done_early_;  // ranges [first, last) beyond `zero_copies_done_`
  SendStats stats_;
};

}  // namespace trimtab::kv_remote
