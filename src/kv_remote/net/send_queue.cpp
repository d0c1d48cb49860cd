#include "kv_remote/net/send_queue.h"

#include <linux/errqueue.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.h"

namespace trimtab::kv_remote {

namespace {
constexpr std::size_t kPiecesMax = 64;
}

void SendQueue::start(int fd, ZeroCopy mode) {
  fd_ = fd;
  mode_ = mode;
  const int yes = 1;
  zero_copy_ = mode != ZeroCopy::kNever && ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) == 0;
}

void SendQueue::push(Header header, std::span<const std::byte> content, std::uint64_t token,
                     std::unique_ptr<std::byte[]> owned) {
  header.length = content.size();
  header.content_checksum = content.empty() ? 0 : base::checksum(content);
  frames_.push_back({pack(header, frame_number_++), content, token, std::move(owned), 0});
}

void SendQueue::push_copy(Header header, std::span<const std::byte> content, std::uint64_t token) {
  auto owned = std::make_unique_for_overwrite<std::byte[]>(content.size());
  std::copy(content.begin(), content.end(), owned.get());
  const std::span<const std::byte> copy(owned.get(), content.size());
  push(header, copy, token, std::move(owned));
}

/// Small frames together, a large one alone, since one flag covers the whole call.
std::int64_t SendQueue::send_some() {
  std::array<iovec, kPiecesMax> pieces;
  std::size_t count = 0, skip = sent_;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (bytes.size() > skipped)
      pieces[count++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
  };
  const bool large = zero_copy_ && frames_[next_].content.size() >= kZeroCopyBytesMin;
  for (std::size_t i = next_; i < frames_.size() && count + 2 <= kPiecesMax; ++i) {
    if (i > next_ && (large || (zero_copy_ && frames_[i].content.size() >= kZeroCopyBytesMin))) break;
    add(frames_[i].header);
    add(frames_[i].content);
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
  if (large) {
    const auto bytes = ::sendmsg(fd_, &message, flags | MSG_ZEROCOPY);
    if (bytes > 0) advance(static_cast<std::size_t>(bytes), true);
    if (bytes >= 0 || errno != ENOBUFS) return bytes;
    ++stats_.zero_copy_refused;
  }
  const auto bytes = ::sendmsg(fd_, &message, flags);
  if (bytes > 0) advance(static_cast<std::size_t>(bytes), false);
  return bytes;
}

void SendQueue::advance(std::size_t bytes, bool zero_copy) {
  stats_.bytes += bytes;
  if (zero_copy) ++zero_copies_, ++stats_.zero_copy_sends;
  sent_ += bytes;
  while (next_ < frames_.size()) {
    Frame& frame = frames_[next_];
    if (zero_copy) frame.zero_copies = zero_copies_;
    const std::size_t whole = kHeaderBytes + frame.content.size();
    if (sent_ < whole) return;
    sent_ -= whole;
    ++next_;
    if (sent_ == 0) return;
  }
}

bool SendQueue::flush() {
  while (blocked()) {
    if (send_some() >= 0) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    if (errno != EINTR) return false;
  }
  return true;
}

void SendQueue::completed(std::uint32_t low, std::uint32_t high) {
  // The kernel counts in 32 bits, from 0.
  const auto extend = [this](std::uint32_t number) {
    const auto distance = static_cast<std::int32_t>(number - static_cast<std::uint32_t>(zero_copies_done_));
    return zero_copies_done_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
  };
  done_early_[extend(low)] = extend(high) + 1;
  while (!done_early_.empty() && done_early_.begin()->first <= zero_copies_done_) {
    zero_copies_done_ = std::max(zero_copies_done_, done_early_.begin()->second);
    done_early_.erase(done_early_.begin());
  }
}

void SendQueue::read_notifications() {
  while (zero_copies_done_ < zero_copies_) {
    alignas(cmsghdr) std::array<char, 128> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0) continue;
      if ((error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) {
        stats_.zero_copy_copied += std::uint64_t{error.ee_data - error.ee_info} + 1;
        // Loopback, or a device without scatter-gather: pinning pages for a copy only costs.
        if (mode_ == ZeroCopy::kAuto) zero_copy_ = false;
      }
      completed(error.ee_info, error.ee_data);
    }
  }
}

std::vector<std::uint64_t> SendQueue::released() {
  std::vector<std::uint64_t> tokens;
  while (next_ > 0 && frames_.front().zero_copies <= zero_copies_done_) {
    if (frames_.front().token != 0) tokens.push_back(frames_.front().token);
    frames_.pop_front();
    --next_;
  }
  return tokens;
}

}  // namespace trimtab::kv_remote
