#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::vision {

/// What the worker read in one image, or why it could not.
struct OcrReply {
  std::uint64_t job = 0;
  base::Result<std::string> text;
};

/// The Python process that reads text out of images, as a child at low priority; JSON lines over a socket
/// (see python/trimtab/ocr/worker.py). Owns no thread: the encoder's loop polls `fd`, calls `read` when there
/// is something and `check` from time to time.
class OcrWorker {
 public:
  struct Options {
    std::string python;
    std::string module;
    int nice_level = 0;
    base::Nanos start_timeout;
    base::Nanos image_timeout;
    std::uint64_t pixels_max = 0;
  };
  enum class State : std::uint8_t { kStopped, kStarting, kIdle, kBusy };

  explicit OcrWorker(Options options) : options_(std::move(options)) {}
  OcrWorker(const OcrWorker&) = delete;
  OcrWorker& operator=(const OcrWorker&) = delete;
  ~OcrWorker() { stop(); }

  State state() const { return state_; }
  int fd() const { return fd_; }  // -1 while stopped

  base::Status start(base::Nanos now);
  /// Only when idle. The image lies in a file, so that the socket carries short lines only.
  base::Status submit(std::uint64_t job, const std::string& image_path, const std::string& media_type,
                      base::Nanos now);
  /// Reads what came without waiting. An error means that the worker died or broke its protocol; it is then
  /// stopped and whatever it was doing is lost.
  base::Result<std::optional<OcrReply>> read();
  /// kDeadlineExceeded (and the worker stopped) when starting or reading an image took too long.
  base::Status check(base::Nanos now);
  /// The time at which `check` would fail.
  base::Nanos deadline() const { return deadline_; }
  void stop();

 private:
  base::Result<std::optional<OcrReply>> take_line();
  base::Error died();

  Options options_;
  State state_ = State::kStopped;
  pid_t pid_ = -1;
  int fd_ = -1;
  base::Nanos deadline_ = base::kForever;
  std::string buffer_;
};

}  // namespace trimtab::vision
