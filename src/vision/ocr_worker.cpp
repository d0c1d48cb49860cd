#include "vision/ocr_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace trimtab::vision {

namespace {

constexpr std::size_t kLineBytesMax = 8UL << 20;  // far beyond the text of any image

tl::unexpected<base::Error> system_error(std::string_view what) {
  return base::fail(base::Code::kIo, fmt::format("cannot {} the OCR worker: {}", what, std::strerror(errno)),
                    "vision");
}

/// In the child, between fork and exec: system calls only.
[[noreturn]] void run_child(int socket, int nice_level, char* const* arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphan keeps reading images
  dup2(socket, STDIN_FILENO);
  dup2(socket, STDOUT_FILENO);
  setpriority(PRIO_PROCESS, 0, nice_level);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(arguments[0], arguments);
  _exit(127);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) == 127) return "could not be executed (exit status 127)";
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace

base::Status OcrWorker::start(base::Nanos now) {
  TRIMTAB_CHECK(state_ == State::kStopped);
  // A socket pair rather than pipes: writing to a worker that died is then an error and not a signal.
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return system_error("make a socket to");
  std::array<std::string, 3> words{options_.python, "-m", options_.module};
  const std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_ = fork();
  if (pid_ == 0) run_child(ends[1], options_.nice_level, arguments.data());
  close(ends[1]);
  fd_ = ends[0];
  if (pid_ < 0) {
    auto error = system_error("start");
    stop();
    return error;
  }
  fcntl(fd_, F_SETFL, O_NONBLOCK);
  state_ = State::kStarting;
  deadline_ = now + options_.start_timeout;
  return {};
}

base::Status OcrWorker::submit(std::uint64_t job, const std::string& image_path,
                               const std::string& media_type, base::Nanos now) {
  TRIMTAB_CHECK(state_ == State::kIdle);
  const nlohmann::json request{
      {"id", job}, {"path", image_path}, {"media_type", media_type}, {"pixels_max", options_.pixels_max}};
  const std::string line = request.dump() + "\n";
  const ssize_t written = ::send(fd_, line.data(), line.size(), MSG_NOSIGNAL);
  if (written != static_cast<ssize_t>(line.size())) return tl::unexpected(died());
  state_ = State::kBusy;
  deadline_ = now + options_.image_timeout;
  return {};
}

base::Error OcrWorker::died() {
  const State state = state_;
  int status = 0;
  // The socket closed, so the process is ending; a worker that closed it and lives on is ended here.
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  stop();
  const std::string how = describe_end(status);
  if (state == State::kStarting) {
    return {base::Code::kUnavailable,
            fmt::format(
                "the OCR worker ({} -m {}) {} while starting: see its messages above; it needs the Python "
                "packages trimtab, rapidocr, onnxruntime and pillow",
                options_.python, options_.module, how),
            "vision"};
  }
  return {base::Code::kInternal, fmt::format("the OCR worker {}", how), "vision"};
}

base::Result<std::optional<OcrReply>> OcrWorker::read() {
  std::array<char, 16'384> piece;
  while (true) {
    if (buffer_.find('\n') != std::string::npos) return take_line();
    const ssize_t count = ::read(fd_, piece.data(), piece.size());
    if (count > 0) buffer_.append(piece.data(), static_cast<std::size_t>(count));
    if (count == 0) {
      // Let it finish by itself for a moment, so that its own exit status is reported.
      for (int i = 0; i < 50; ++i) {
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0)
          break;
        usleep(2'000);
      }
      return tl::unexpected(died());
    }
    if (count < 0 && errno == EAGAIN) return std::optional<OcrReply>{};
    if (count < 0 && errno != EINTR) return tl::unexpected(died());
    if (buffer_.size() > kLineBytesMax) {
      stop();
      return base::fail(base::Code::kInternal, "the OCR worker wrote a line without end", "vision");
    }
  }
}

base::Result<std::optional<OcrReply>> OcrWorker::take_line() {
  const std::size_t end = buffer_.find('\n');
  const auto message = nlohmann::json::parse(buffer_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  buffer_.erase(0, end + 1);
  const bool usable = message.is_object();
  if (usable && state_ == State::kStarting && message.contains("ready")) {
    state_ = State::kIdle;
    deadline_ = base::kForever;
    return std::optional<OcrReply>{};
  }
  const auto text_field = [&](const char* key) {
    return usable && message.contains(key) && message[key].is_string() ? message[key].get<std::string>() : "";
  };
  const bool is_reply =
      usable && state_ == State::kBusy && message.contains("id") && message["id"].is_number_unsigned();
  if (!is_reply || (!message.contains("text") && !message.contains("error"))) {
    const bool starting = state_ == State::kStarting;
    stop();
    return base::fail(starting ? base::Code::kUnavailable : base::Code::kInternal,
                      "the OCR worker wrote something that is no reply", "vision");
  }
  state_ = State::kIdle;
  deadline_ = base::kForever;
  OcrReply reply{message["id"].get<std::uint64_t>(), text_field("text")};
  if (message.contains("error")) {
    const auto code =
        text_field("code") == "invalid_argument" ? base::Code::kInvalidArgument : base::Code::kInternal;
    reply.text = base::fail(code, text_field("error"), "vision");
  }
  return std::optional<OcrReply>{std::move(reply)};
}

base::Status OcrWorker::check(base::Nanos now) {
  if (state_ == State::kStopped || now < deadline_) return {};
  const bool starting = state_ == State::kStarting;
  stop();
  return base::fail(base::Code::kDeadlineExceeded,
                    starting ? fmt::format("the OCR worker did not start within {:.0f} s",
                                           base::to_seconds(options_.start_timeout))
                             : fmt::format("reading the image took longer than {:.1f} s",
                                           base::to_seconds(options_.image_timeout)),
                    "vision");
}

void OcrWorker::stop() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  buffer_.clear();
  state_ = State::kStopped;
  deadline_ = base::kForever;
}

}  // namespace trimtab::vision
