#include "vision/encoder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "ipc/channel.h"
#include "ipc/segment.h"
#include "ipc/steady_clock.h"
#include "vision/embedding_rows.h"
#include "vision/encode_queue.h"
#include "vision/ocr_worker.h"
#include "wire/messages.h"

namespace trimtab::vision {

namespace {

constexpr std::uint32_t kRowsMax = 65'536;
constexpr int kAttempts =
    2;  // an image whose worker died is tried once more: the death may have been its own
constexpr base::Nanos kPollLongest{100'000'000};  // how late `stop` may be noticed

/// The loop of one encoder process: one thread that waits for the control socket and for the OCR worker.
class Encoder {
 public:
  Encoder(const EncoderOptions& options, ipc::Channel channel, const EmbeddingRows& rows)
      : options_(options),
        channel_(std::move(channel)),
        rows_(rows),
        worker_({options.python, options.worker_module, options.nice_level, options.start_timeout,
                 options.image_timeout, options.limits.pixels_max}),
        image_path_(fmt::format("{}/ocr-{}-{}-{}.image", options.shm_dir, options.id.machine.value,
                                options.id.encoder, getpid())) {}
  ~Encoder() { unlink(image_path_.c_str()); }

  base::Status run(const std::atomic<bool>& stop);

 private:
  base::Status handle_frames();
  base::Status handle(const ipc::Frame& frame);
  base::Status drive_worker();
  base::Status worker_lost(const base::Error& error);
  base::Status begin_image();
  base::Status submit_image();
  base::Status finish(base::Result<std::string> text);
  base::Status refuse(const wire::Encode& job, const base::Error& error);
  base::Status store_image(const wire::Encode& job) const;
  void wait();

  const EncoderOptions& options_;
  ipc::Channel channel_;
  const EmbeddingRows& rows_;
  ipc::SteadyClock clock_;
  OcrWorker worker_;
  EncodeQueue queue_;
  std::string image_path_;
  base::Nanos idle_since_ = clock_.now();
  bool warming_failed_ = false;  // the worker was lost: only an image starts it again
  bool shutdown_ = false;
};

base::Status Encoder::run(const std::atomic<bool>& stop) {
  while (!stop && !shutdown_) {
    TRIMTAB_TRY(handle_frames());
    TRIMTAB_TRY(drive_worker());
    if (!shutdown_) wait();
  }
  return {};
}

void Encoder::wait() {
  const base::Nanos now = clock_.now();
  base::Nanos until = std::min(now + kPollLongest, worker_.deadline());
  const std::array<pollfd, 2> items{{{channel_.fd(), POLLIN, 0}, {worker_.fd(), POLLIN, 0}}};
  std::array<pollfd, 2> polled = items;
  const auto wait_ms = std::max<std::int64_t>(0, (until - now).value / 1'000'000);
  poll(polled.data(), polled.size(), static_cast<int>(wait_ms));
}

base::Status Encoder::handle_frames() {
  while (true) {
    const auto frame = channel_.receive(base::Nanos{0});
    if (!frame) {
      if (frame.error().code != base::Code::kUnavailable) return tl::unexpected(frame.error());
      shutdown_ = true;  // the control process left, and with it everyone who wants these images
      return {};
    }
    if (!frame->has_value()) return {};
    TRIMTAB_TRY(handle(**frame));
    if (shutdown_) return {};
  }
}

base::Status Encoder::handle(const ipc::Frame& frame) {
  switch (wire::type_of(frame)) {
    case wire::Type::kEncode: {
      auto job = wire::from_frame<wire::Encode>(frame);
      if (!job) return tl::unexpected(job.error());
      queue_.push(std::move(*job));
      return {};
    }
    case wire::Type::kAbort: {
      const auto abort = wire::from_frame<wire::Abort>(frame);
      if (!abort) return tl::unexpected(abort.error());
      if (!queue_.abort(abort->id)) return {};  // `finish` answers
      return channel_.send(wire::to_frame(wire::Released{abort->id, 0}));
    }
    case wire::Type::kShutdown:
      shutdown_ = true;
      return {};
    default:
      return base::fail(base::Code::kInternal,
                        fmt::format("an encoder got a message of type {}", static_cast<int>(frame.type)),
                        "vision");
  }
}

base::Status Encoder::drive_worker() {
  if (worker_.state() != OcrWorker::State::kStopped) {
    auto reply = worker_.read();
    if (!reply) {
      TRIMTAB_TRY(worker_lost(reply.error()));
    } else if (reply->has_value()) {
      auto* running = queue_.running();
      if (running != nullptr && running->number == (*reply)->job)
        TRIMTAB_TRY(finish(std::move((*reply)->text)));
    }
    if (auto late = worker_.check(clock_.now()); !late) TRIMTAB_TRY(worker_lost(late.error()));
  }
  if (!queue_.idle()) idle_since_ = clock_.now();
  const bool warm_now = !warming_failed_ && options_.warm_after != base::kForever &&
                        clock_.now() - idle_since_ >= options_.warm_after;
  if (worker_.state() == OcrWorker::State::kStopped && (!queue_.idle() || warm_now)) {
    if (auto started = worker_.start(clock_.now()); !started) TRIMTAB_TRY(worker_lost(started.error()));
  }
  // Images that need no reading (broken ones) are answered at once; the loop ends when one is being read.
  while (worker_.state() == OcrWorker::State::kIdle &&
         (queue_.has_waiting() || queue_.running() != nullptr)) {
    TRIMTAB_TRY(queue_.running() != nullptr ? submit_image() : begin_image());
  }
  return {};
}

base::Status Encoder::worker_lost(const base::Error& error) {
  spdlog::warn("{}", base::to_string(error));
  warming_failed_ = true;
  auto* running = queue_.running();
  // It was alive and died: the loop starts it again. An image gets a second try, since another cause (memory
  // taken by others) may have killed the worker.
  const bool died = error.code == base::Code::kInternal;
  if (died && (running == nullptr || running->attempts < kAttempts)) return {};
  if (running != nullptr) return finish(tl::unexpected(error));
  // No worker can start: everyone who waits learns why, and the next image tries again.
  for (const wire::Encode& job : queue_.take_waiting()) TRIMTAB_TRY(refuse(job, error));
  return {};
}

base::Status Encoder::begin_image() {
  const EncodeQueue::Running& running = queue_.begin(clock_.now());
  const wire::Encode& job = running.job;
  const auto header = image_header(std::as_bytes(std::span{job.bytes}), job.media_type, options_.limits);
  if (!header) return finish(tl::unexpected(header.error()));
  if (job.rows == 0 || job.rows > kRowsMax) {
    return finish(base::fail(
        base::Code::kInvalidArgument,
        fmt::format("{} rows asked for an image, 1 to {} are possible", job.rows, kRowsMax), "vision"));
  }
  if (auto stored = store_image(job); !stored) return finish(tl::unexpected(stored.error()));
  return {};
}

base::Status Encoder::submit_image() {
  auto* running = queue_.running();
  ++running->attempts;
  const std::string media_type = running->job.media_type == "image/png" ? "image/png" : "image/jpeg";
  const auto submitted = worker_.submit(running->number, image_path_, media_type, clock_.now());
  return submitted ? base::Status{} : worker_lost(submitted.error());
}

base::Status Encoder::store_image(const wire::Encode& job) const {
  const int fd = open(image_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const ssize_t written = fd < 0 ? -1 : write(fd, job.bytes.data(), job.bytes.size());
  if (fd >= 0) close(fd);
  if (written == static_cast<ssize_t>(job.bytes.size())) return {};
  return base::fail(
      base::Code::kIo,
      fmt::format("cannot write {} bytes to {}: is shm_dir full?", job.bytes.size(), image_path_), "vision");
}

base::Status Encoder::finish(base::Result<std::string> text) {
  const EncodeQueue::Running ended = queue_.end();
  const wire::Encode& job = ended.job;
  unlink(image_path_.c_str());
  if (ended.aborted) return channel_.send(wire::to_frame(wire::Released{job.id, 0}));
  if (!text) return refuse(job, text.error());
  warming_failed_ = false;
  ImageTokens tokens = rows_.fit(*text, job.rows);
  if (auto written = rows_.write(tokens.ids, job.segment); !written) return refuse(job, written.error());
  wire::Encoded encoded;
  encoded.id = job.id;
  encoded.image = job.image;
  encoded.rows = job.rows;
  encoded.hidden = rows_.hidden();
  encoded.text_tokens = tokens.text_tokens;
  encoded.truncated_tokens = tokens.truncated_tokens;
  encoded.actual_ns = (clock_.now() - ended.begun).value;
  encoded.segment = job.segment;
  encoded.token_ids = std::move(tokens.ids);
  return channel_.send(wire::to_frame(encoded));
}

base::Status Encoder::refuse(const wire::Encode& job, const base::Error& error) {
  return channel_.send(wire::to_frame(wire::EncodeFailed{job.id, job.image, error.code, error.message}));
}

}  // namespace

base::Status run_encoder(const EncoderOptions& options, const std::atomic<bool>& stop) {
  const auto file = gguf::GgufFile::open(options.model_path);
  if (!file) return tl::unexpected(file.error());
  const auto tokenizer = text::Tokenizer::load(*file);
  if (!tokenizer) return tl::unexpected(tokenizer.error());
  const auto rows = EmbeddingRows::create(*file, *tokenizer);
  if (!rows) return tl::unexpected(rows.error());
  constexpr base::Nanos kPatience{10'000'000'000};
  auto channel = ipc::Channel::connect(options.control_socket, kPatience);
  if (!channel) return tl::unexpected(channel.error());
  wire::Hello hello;
  hello.role = model::Role::kVision;
  hello.engine = options.id.machine.value;
  hello.rank = options.id.encoder;
  hello.pid = getpid();
  hello.model_fingerprint = file->fingerprint();
  TRIMTAB_TRY(channel->send(wire::to_frame(hello)));
  Encoder encoder(options, std::move(*channel), *rows);
  return encoder.run(stop);
}

}  // namespace trimtab::vision
