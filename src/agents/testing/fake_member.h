#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "wire/messages.h"

namespace trimtab::agents::testing {

/// What the fake model says after `tokens`: a hash of all of them, so that a token that is lost, doubled or
/// out of order changes everything after it.
std::int32_t next_token(const std::vector<std::int32_t>& tokens);
/// The checksum that a fake rank reports for that token's logits.
std::uint64_t logits_of(const std::vector<std::int32_t>& tokens);
/// The whole answer to a prompt.
std::vector<std::int32_t> expected_answer(std::vector<std::int32_t> prompt, std::uint32_t tokens);

/// A prefill rank, decode rank or encoder without a model that speaks the engines' protocol over a real
/// socket, on the test's own event loop. It steps whenever it has work, unless `paused`.
class FakeMember {
 public:
  FakeMember(boost::asio::io_context& context, std::string socket_path, wire::Hello hello);
  ~FakeMember();
  FakeMember(const FakeMember&) = delete;
  FakeMember& operator=(const FakeMember&) = delete;

  void connect();
  /// The process is killed: what it held is gone, and nothing more is said.
  void die();
  bool connected() const { return connected_; }
  /// Takes a step if there is work; for paused members.
  void step();

  bool paused = false;        // no steps, no encodings
  bool rejoins = true;        // on Shutdown: comes back as a new process, like under a supervisor
  bool refuses = false;       // decode: answers DecodeReserve with no blocks
  bool fails_images = false;  // encoder
  /// Prefill: reads of the pool end after so many blocks, in this way; the rest is computed.
  std::optional<std::uint32_t> fetch_blocks_most = std::nullopt;
  wire::FetchEnd fetch_end = wire::FetchEnd::kGone;
  /// Prefill: what each answer says of steps that began before all of the hit had come.
  std::int64_t swap_step_ns = 0, swap_stalled_ns = 0;
  std::uint32_t thrown_tokens = 0;
  std::uint32_t chunk_tokens = 100'000;
  /// Prefill: the rows of logits that it says of a hit that began approximate, and of the exact run over it.
  std::vector<float> drifted_logits, true_logits;
  std::uint64_t prefill_starts = 0, prefill_tokens = 0, decode_starts = 0, encodes = 0, aborts = 0,
                shutdowns = 0;
  std::vector<wire::PrefillStart> started;  // prefill

  /// Requests that hold something here.
  std::size_t holding() const;
  const wire::Hello& hello() const { return hello_; }
  void send_raw(const ipc::Frame& frame) { send_frame(frame); }

 private:
  struct Prefill {
    wire::PrefillStart start;
    std::uint32_t computed = 0;
    std::optional<wire::DecodeTarget> target;
    std::set<std::uint32_t> images_here;
    bool fetch_was_short = false;
  };
  struct Decode {
    wire::DecodeStart start;
    std::uint32_t generated = 0;
  };
  void read();
  void on_frame(const ipc::Frame& frame);
  void on(const wire::PrefillStart& m);
  void on(const wire::Embeddings& m);
  void on(const wire::DecodeTarget& m);
  void on(const wire::Abort& m);
  void on(const wire::DecodeReserve& m);
  void on(const wire::DecodeStart& m);
  void on(const wire::Encode& m);
  void on(const wire::Shutdown&);
  void schedule();
  void prefill_step();
  void finish(const Prefill& p);
  void decode_step();
  void encode_one();
  bool images_ready(const Prefill& p) const;
  void send_frame(const ipc::Frame& frame);
  template <class M>
  void send(const M& m) {
    send_frame(wire::to_frame(m));
  }

  boost::asio::io_context& context_;
  std::string path_;
  wire::Hello hello_;
  std::shared_ptr<boost::asio::local::stream_protocol::socket> socket_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  ipc::FrameSplitter splitter_;
  std::array<std::byte, 65'536> piece_;
  bool connected_ = false, scheduled_ = false;
  std::uint64_t steps_ = 0;

  std::deque<Prefill> prefills_;
  std::vector<Prefill> computed_;  // waiting for their decode target
  std::map<model::RequestId, std::vector<std::uint32_t>> reserved_;
  std::map<model::RequestId, Decode> decodes_;
  std::set<std::uint32_t> blocks_free_;
  std::deque<wire::Encode> encodes_;
};

}  // namespace trimtab::agents::testing
