#include "vision/encoder.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ipc/channel.h"
#include "ipc/segment.h"
#include "text/small_model.h"
#include "text/tokenizer.h"
#include "wire/messages.h"

// The encoder loop over a real socket and a real child process. Where the child has to fail, a few lines of
// Python stand in for the OCR; the last test runs the OCR itself.
namespace trimtab::vision {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

constexpr std::uint32_t kHidden = 4;
constexpr base::Nanos kPatience{180'000'000'000};

constexpr const char* kWorker = R"(
import json, os, sys, time
out = os.fdopen(os.dup(1), 'w')
folder = os.path.dirname(os.path.abspath(__file__))
def say(**message): print(json.dumps(message), file=out, flush=True)
open(folder + '/starts', 'a').write('x')
if os.path.exists(folder + '/cannot_start'): sys.exit(3)
say(ready=True)
for line in sys.stdin:
    request = json.loads(line)
    image = open(request['path'], 'rb').read()
    word = image[33:].decode()
    if word == 'die': os._exit(9)
    if word == 'die once':
        if not os.path.exists(folder + '/died'):
            open(folder + '/died', 'w').close()
            os._exit(9)
    if word == 'hang': time.sleep(3600)
    if word == 'slow': time.sleep(0.5)
    if word == 'garbage':
        print('no json', file=out, flush=True)
        continue
    if word == 'bad':
        say(id=request['id'], code='invalid_argument', error='cannot be decoded')
        continue
    say(id=request['id'], text=word)
)";

std::vector<std::uint8_t> png(const std::string& word, std::uint8_t width = 8) {
  const std::string bytes = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0"s + static_cast<char>(width) +
                            "\0\0\0\x08\x08\x06\0\0\0crc!"s + word;
  return {bytes.begin(), bytes.end()};
}

class EncoderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("encoder_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    { std::ofstream(folder_ / "stand_in.py") << kWorker; }
    ASSERT_TRUE(text::small_model(kHidden).write(folder_ / "model.gguf"));
    const char* path = std::getenv("PYTHONPATH");
    old_path_ = path == nullptr ? "" : path;
    setenv("PYTHONPATH", folder_.c_str(), 1);
    options_.control_socket = folder_ / "control.sock";
    options_.id = {model::MachineId{1}, 2};
    options_.model_path = folder_ / "model.gguf";
    options_.shm_dir = folder_;
    options_.worker_module = "stand_in";
    options_.warm_after = base::kForever;
    options_.image_timeout = kPatience;
  }
  void TearDown() override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    setenv("PYTHONPATH", old_path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  /// Starts the encoder and takes its Hello.
  void start() {
    auto listener = ipc::Listener::bind(options_.control_socket);
    ASSERT_TRUE(listener);
    thread_ = std::thread([this] { status_ = run_encoder(options_, stop_); });
    const auto fd = listener->accept(kPatience);
    ASSERT_TRUE(fd && *fd);
    control_.emplace(**fd);
    const auto hello = receive<wire::Hello>();
    EXPECT_EQ(hello.role, model::Role::kVision);
    EXPECT_EQ(hello.engine, 1U);
    EXPECT_EQ(hello.rank, 2U);
    EXPECT_NE(hello.model_fingerprint, 0U);
  }
  void send_image(std::uint64_t request, std::vector<std::uint8_t> bytes, std::uint32_t rows = 8) {
    wire::Encode job;
    job.id = model::RequestId{request};
    job.rows = rows;
    job.media_type = "image/png";
    job.bytes = std::move(bytes);
    job.segment = segment(request);
    ASSERT_TRUE(control_->send(wire::to_frame(job)));
  }
  void abort(std::uint64_t request) {
    ASSERT_TRUE(control_->send(wire::to_frame(wire::Abort{model::RequestId{request}})));
  }
  std::string segment(std::uint64_t request) const { return folder_ / ("rows-" + std::to_string(request)); }
  template <class M>
  M receive() {
    const auto frame = control_->receive(kPatience);
    EXPECT_TRUE(frame && *frame) << "the encoder said nothing";
    if (!frame || !*frame) return {};
    auto message = wire::from_frame<M>(**frame);
    EXPECT_TRUE(message) << message.error().message;
    return message ? *message : M{};
  }

  std::filesystem::path folder_;
  std::string old_path_;
  EncoderOptions options_;
  std::optional<ipc::Channel> control_;
  std::atomic<bool> stop_{false};
  base::Status status_;
  std::thread thread_;
};

TEST_F(EncoderTest, WordsBecomeEmbeddingRowsPaddedToTheRowsPromised) {
  start();
  send_image(5, png("hello"), 3);
  const auto done = receive<wire::Encoded>();
  EXPECT_EQ(done.id.value, 5U);
  EXPECT_EQ(done.hidden, kHidden);
  EXPECT_EQ(done.text_tokens, 1U);
  EXPECT_EQ(done.truncated_tokens, 0U);
  ASSERT_EQ(done.token_ids.size(), 3U);
  const std::int32_t line_feed = 3 + '\n';
  EXPECT_EQ(done.token_ids[1], line_feed);
  EXPECT_EQ(done.token_ids[2], line_feed);
  const auto rows = ipc::Segment::open(segment(5), true);
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 3 * kHidden * sizeof(float));
  const auto* values = reinterpret_cast<const float*>(rows->data());
  for (std::size_t row = 0; row < 3; ++row) {  // the table's row i holds i, i + 0.5, ...
    for (std::size_t i = 0; i < kHidden; ++i) {
      EXPECT_EQ(values[row * kHidden + i],
                static_cast<float>(done.token_ids[row]) + 0.5F * static_cast<float>(i));
    }
  }
  EXPECT_GT(done.actual_ns, 0);
}

TEST_F(EncoderTest, WhatDoesNotFitIsCutAndCounted) {
  start();
  send_image(1, png("abcdefg"), 4);
  const auto done = receive<wire::Encoded>();
  EXPECT_EQ(done.text_tokens, 4U);
  EXPECT_EQ(done.truncated_tokens, 3U);
  EXPECT_EQ(done.token_ids.size(), 4U);
}

TEST_F(EncoderTest, SpecialTokensInAnImageAreSpelled) {
  start();
  send_image(1, png("<|im_end|>"), 16);
  const auto done = receive<wire::Encoded>();
  EXPECT_EQ(done.text_tokens, 10U);
  for (const auto id : done.token_ids) EXPECT_GT(id, 2);
}

TEST_F(EncoderTest, BadImagesAreAnsweredByWhatIsWrong) {
  start();
  const std::string text = "not an image";
  send_image(1, {text.begin(), text.end()});
  auto failed = receive<wire::EncodeFailed>();
  EXPECT_EQ(failed.id.value, 1U);
  EXPECT_EQ(failed.code, base::Code::kInvalidArgument);
  EXPECT_THAT(failed.message, HasSubstr("not an image"));
  send_image(2, png("x", 0));
  EXPECT_THAT(receive<wire::EncodeFailed>().message, HasSubstr("0x8"));
  send_image(3, png("bad"));
  failed = receive<wire::EncodeFailed>();
  EXPECT_EQ(failed.code, base::Code::kInvalidArgument);
  EXPECT_THAT(failed.message, HasSubstr("cannot be decoded"));
  send_image(4, png("fine"), 0);
  EXPECT_THAT(receive<wire::EncodeFailed>().message, HasSubstr("0 rows"));
  send_image(5, png("fine"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 5U);
}

TEST_F(EncoderTest, AWorkerThatDiesIsStartedAgain) {
  start();
  send_image(1, png("die once"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 1U);  // the second try
  send_image(2, png("die"));
  send_image(3, png("after"));
  const auto failed = receive<wire::EncodeFailed>();
  EXPECT_EQ(failed.id.value, 2U);
  EXPECT_THAT(failed.message, HasSubstr("ended with status 9"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 3U);
}

TEST_F(EncoderTest, AWorkerThatHangsIsEndedInTime) {
  options_.image_timeout = base::Nanos{1'500'000'000};
  start();
  send_image(1, png("hang"));
  send_image(2, png("next"));
  const auto failed = receive<wire::EncodeFailed>();
  EXPECT_EQ(failed.code, base::Code::kDeadlineExceeded);
  EXPECT_THAT(failed.message, HasSubstr("longer than 1.5 s"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 2U);
}

TEST_F(EncoderTest, AWorkerThatBreaksTheProtocolFailsItsImageOnly) {
  start();
  send_image(1, png("garbage"));
  EXPECT_THAT(receive<wire::EncodeFailed>().message, HasSubstr("no reply"));
  send_image(2, png("next"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 2U);
}

TEST_F(EncoderTest, AWorkerThatCannotStartFailsAllThatWaitAndIsTriedAgain) {
  { std::ofstream(folder_ / "cannot_start") << ""; }
  start();
  send_image(1, png("a"));
  const auto failed = receive<wire::EncodeFailed>();
  EXPECT_EQ(failed.code, base::Code::kUnavailable);
  EXPECT_THAT(failed.message, HasSubstr("ended with status 3 while starting"));
  std::filesystem::remove(folder_ / "cannot_start");
  send_image(2, png("b"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 2U);
}

TEST_F(EncoderTest, AnInterpreterThatIsMissingIsNamed) {
  options_.python = "/nonexistent/python";
  start();
  send_image(1, png("a"));
  EXPECT_THAT(receive<wire::EncodeFailed>().message, HasSubstr("/nonexistent/python"));
}

TEST_F(EncoderTest, AbortFreesWaitingImagesAtOnceAndTheRunningOneAtItsEnd) {
  start();
  send_image(1, png("slow"));
  send_image(2, png("second"));
  send_image(3, png("third"));
  abort(2);
  EXPECT_EQ(receive<wire::Released>().id.value, 2U);
  abort(1);
  EXPECT_EQ(receive<wire::Released>().id.value, 1U);
  EXPECT_EQ(receive<wire::Encoded>().id.value, 3U);
  EXPECT_FALSE(std::filesystem::exists(segment(1)));
  EXPECT_FALSE(std::filesystem::exists(segment(2)));
  abort(99);
  EXPECT_EQ(receive<wire::Released>().id.value, 99U);
}

TEST_F(EncoderTest, WarmsUpWhileIdleAndDoesNotInsist) {
  options_.warm_after = base::Nanos{1'000'000};
  { std::ofstream(folder_ / "cannot_start") << ""; }
  start();
  const auto starts = [&] {
    std::error_code none;
    const auto size = std::filesystem::file_size(folder_ / "starts", none);
    return none ? 0 : size;
  };
  for (int i = 0; i < 600 && starts() == 0; ++i) usleep(50'000);  // no image was sent
  EXPECT_EQ(starts(), 1U);
  usleep(700'000);
  EXPECT_EQ(starts(), 1U);  // warming failed: it is not tried over and over
  std::filesystem::remove(folder_ / "cannot_start");
  send_image(1, png("a"));
  EXPECT_EQ(receive<wire::Encoded>().id.value, 1U);
  EXPECT_EQ(starts(), 2U);
}

TEST_F(EncoderTest, EndsWhenControlLeavesOrSaysSo) {
  start();
  control_.reset();
  thread_.join();
  EXPECT_TRUE(status_);
  start();
  ASSERT_TRUE(control_->send(wire::to_frame(wire::Shutdown{})));
  thread_.join();
  EXPECT_TRUE(status_);
}

TEST_F(EncoderTest, AModelWithoutEmbeddingsIsRefused) {
  ASSERT_TRUE(text::small_model().write(options_.model_path));
  const auto status = run_encoder(options_, stop_);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("token_embd.weight"));
}

/// The interpreter that has the OCR, else "".
std::string python_with_ocr() {
  const char* named = std::getenv("TRIMTAB_PYTHON");
  for (const char* python : {named, ".venv/bin/python"}) {
    if (python == nullptr) continue;
    const std::string probe = std::string(python) + " -c 'import rapidocr, onnxruntime, PIL' >/dev/null 2>&1";
    if (std::system(probe.c_str()) == 0) return python;
  }
  return "";
}

TEST_F(EncoderTest, TheRealOcrReadsADrawnScreenshot) {
  options_.python = python_with_ocr();
  if (options_.python.empty())
    GTEST_SKIP() << "no interpreter with rapidocr: set TRIMTAB_PYTHON or run ./run once";
  // Only the worker is needed, not the package around it with its binding.
  std::filesystem::create_directories(folder_ / "trimtab");
  std::filesystem::create_directory_symlink(std::filesystem::absolute("python/trimtab/ocr"),
                                            folder_ / "trimtab/ocr");
  const std::string draw =
      options_.python +
      " -c \"from PIL import Image, ImageDraw, ImageFont; i = Image.new('RGB', (480, 80), 'white'); "
      "ImageDraw.Draw(i).text((20, 20), 'Build failed: error 404', 'black', "
      "ImageFont.load_default(size=32)); i.save('" +
      (folder_ / "shot.png").string() + "')\"";
  ASSERT_EQ(std::system(draw.c_str()), 0);
  std::ifstream file(folder_ / "shot.png", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  options_.worker_module = "trimtab.ocr";
  start();
  send_image(1, {bytes.begin(), bytes.end()}, 64);
  const auto done = receive<wire::Encoded>();
  const auto tokenizer = text::Tokenizer::load(*gguf::GgufFile::open(options_.model_path));
  const std::string text = tokenizer->decode(
      std::span(done.token_ids).first(std::min<std::size_t>(done.text_tokens, done.token_ids.size())));
  EXPECT_EQ(text, "Build failed: error 404");
}

}  // namespace
}  // namespace trimtab::vision
