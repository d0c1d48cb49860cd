#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::ipc {

/// One framed message: little-endian u32 payload length, u16 type, payload (see `wire` for the types).
struct Frame {
  std::uint16_t type = 0;
  std::vector<std::byte> payload;
};

inline constexpr std::size_t kFrameHeaderBytes = 6;
inline constexpr std::size_t kFrameBytesMax = 256UL << 20;  // a longer length is a broken peer

/// Header bytes followed by the payload.
std::vector<std::byte> pack(const Frame& frame);

/// Cuts frames out of a byte stream that arrives in any pieces.
class FrameSplitter {
 public:
  void append(std::span<const std::byte> bytes);
  /// The next whole frame, nothing when more bytes are needed, or an error when the length is beyond
  /// `kFrameBytesMax`.
  base::Result<std::optional<Frame>> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t read_ = 0;
};

/// A connected Unix stream socket that speaks frames; blocking, for the processes at the edge (ranks,
/// encoders, loaders). One thread may send while another receives.
class Channel {
 public:
  static base::Result<Channel> connect(const std::string& path, base::Nanos patience);
  explicit Channel(int fd) : fd_(fd) {}
  Channel(Channel&& other) noexcept
      : fd_(other.fd_),
        splitter_(std::move(other.splitter_)),
        descriptors_(std::exchange(other.descriptors_, {})) {
    other.fd_ = -1;
  }
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  base::Status send(const Frame& frame);
  /// Waits up to `timeout` for a frame; nothing on the timeout, kUnavailable when the peer closed.
  base::Result<std::optional<Frame>> receive(base::Nanos timeout = base::kForever);
  /// Descriptors that came with what was received; the caller's from now on. Those that nobody takes are
  /// closed with the channel.
  std::vector<int> take_descriptors() { return std::exchange(descriptors_, {}); }
  /// The peer has ended or gone; never waits.
  bool peer_gone() const;
  /// Makes a blocked `receive` of another thread return.
  void shutdown();
  int fd() const { return fd_; }

 private:
  base::Result<std::size_t> receive_some(std::span<std::byte> piece);
  int fd_ = -1;
  FrameSplitter splitter_;
  std::vector<int> descriptors_;
};

/// Sends a frame at once or not at all, with descriptors for the peer (at most 16), which stay the caller's
/// too. False: the socket is full, or gone.
bool send_with_descriptors(int fd, const Frame& frame, std::span<const int> descriptors);

/// Listens on a Unix socket path (an old file of that name is replaced).
class Listener {
 public:
  static base::Result<Listener> bind(const std::string& path);
  explicit Listener(int fd) : fd_(fd) {}
  Listener(Listener&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  ~Listener();
  /// The next connection's descriptor, or nothing on the timeout.
  base::Result<std::optional<int>> accept(base::Nanos timeout = base::kForever);
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace trimtab::ipc
