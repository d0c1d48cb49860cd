#include "agents/testing/fake_member.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "ipc/segment.h"

namespace trimtab::agents::testing {

namespace asio = boost::asio;
using Socket = asio::local::stream_protocol::socket;

std::uint64_t logits_of(const std::vector<std::int32_t>& tokens) {
  return base::checksum_of(std::span<const std::int32_t>(tokens));
}

std::int32_t next_token(const std::vector<std::int32_t>& tokens) {
  return 10 + static_cast<std::int32_t>(logits_of(tokens) % 40'000);
}

std::vector<std::int32_t> expected_answer(std::vector<std::int32_t> prompt, std::uint32_t tokens) {
  std::vector<std::int32_t> answer;
  while (answer.size() < tokens) {
    answer.push_back(next_token(prompt));
    prompt.push_back(answer.back());
  }
  return answer;
}

FakeMember::FakeMember(asio::io_context& context, std::string socket_path, wire::Hello hello)
    : context_(context), path_(std::move(socket_path)), hello_(std::move(hello)) {}

FakeMember::~FakeMember() { die(); }

void FakeMember::connect() {
  TRIMTAB_CHECK(!connected_);
  alive_ = std::make_shared<bool>(true);
  socket_ = std::make_shared<Socket>(context_);
  boost::system::error_code error;
  socket_->connect(asio::local::stream_protocol::endpoint(path_), error);
  TRIMTAB_CHECK(!error, error.message());
  connected_ = true;
  for (std::uint32_t i = 0; i < hello_.blocks_total; ++i) blocks_free_.insert(i);
  send(hello_);
  read();
}

void FakeMember::die() {
  *alive_ = false;
  connected_ = scheduled_ = false;
  if (socket_) socket_->close();
  socket_.reset();
  splitter_ = {};
  prefills_.clear();
  computed_.clear();
  reserved_.clear();
  decodes_.clear();
  encodes_.clear();
  blocks_free_.clear();
}

std::size_t FakeMember::holding() const {
  return prefills_.size() + computed_.size() + reserved_.size() + encodes_.size();
}

void FakeMember::read() {
  socket_->async_read_some(asio::buffer(piece_),
                           [this, alive = alive_](const boost::system::error_code& error, std::size_t n) {
                             if (!*alive) return;
                             if (error) return die();
                             splitter_.append(std::span{piece_.data(), n});
                             while (*alive) {
                               auto frame = splitter_.next();
                               TRIMTAB_CHECK(frame.has_value());
                               if (!frame->has_value()) break;
                               on_frame(**frame);
                             }
                             if (*alive) read();
                           });
}

void FakeMember::send_frame(const ipc::Frame& frame) {
  if (!connected_) return;
  const auto bytes = ipc::pack(frame);
  boost::system::error_code error;  // a host that is gone shows as an end of the stream
  asio::write(*socket_, asio::buffer(bytes), error);
}

void FakeMember::on_frame(const ipc::Frame& frame) {
  const auto take = [&]<class M>(std::type_identity<M>) {
    const auto message = wire::from_frame<M>(frame);
    TRIMTAB_CHECK(message.has_value());
    on(*message);
  };
  switch (wire::type_of(frame)) {
    case wire::Type::kPrefillStart:
      return take(std::type_identity<wire::PrefillStart>{});
    case wire::Type::kEmbeddings:
      return take(std::type_identity<wire::Embeddings>{});
    case wire::Type::kDecodeTarget:
      return take(std::type_identity<wire::DecodeTarget>{});
    case wire::Type::kAbort:
      return take(std::type_identity<wire::Abort>{});
    case wire::Type::kDecodeReserve:
      return take(std::type_identity<wire::DecodeReserve>{});
    case wire::Type::kDecodeStart:
      return take(std::type_identity<wire::DecodeStart>{});
    case wire::Type::kEncode:
      return take(std::type_identity<wire::Encode>{});
    case wire::Type::kShutdown:
      return take(std::type_identity<wire::Shutdown>{});
    default:
      TRIMTAB_CHECK(false, "the host says what no rank understands");
  }
}

void FakeMember::on(const wire::PrefillStart& m) {
  TRIMTAB_CHECK(m.hit_tokens < m.tokens.size(), "nothing to compute");
  TRIMTAB_CHECK(m.hit_tokens / 128 <= m.keys.size(), "a hit without its keys");
  ++prefill_starts;
  wire::PrefillStart start = m;
  if (fetch_blocks_most) start.hit_tokens = std::min(start.hit_tokens, *fetch_blocks_most * 128);
  prefill_tokens += m.tokens.size() - start.hit_tokens;
  started.push_back(m);
  prefills_.push_back({start, start.hit_tokens, std::nullopt, {}, start.hit_tokens < m.hit_tokens});
  schedule();
}

void FakeMember::on(const wire::Embeddings& m) {
  // Gone already: the client left meanwhile and the abort is on its way. Were it not, the request would stand
  // still here, and its test with it.
  if (::access(m.segment.c_str(), R_OK) != 0) return;
  ipc::Segment::remove(m.segment);
  for (Prefill& p : prefills_)
    if (p.start.id == m.id) p.images_here.insert(m.image);
  schedule();
}

void FakeMember::on(const wire::DecodeTarget& m) {
  for (Prefill& p : prefills_)
    if (p.start.id == m.id) p.target = m;
  const auto waiting =
      std::find_if(computed_.begin(), computed_.end(), [&](const Prefill& p) { return p.start.id == m.id; });
  if (waiting == computed_.end()) return;
  waiting->target = m;
  finish(*waiting);
  computed_.erase(waiting);
}

void FakeMember::on(const wire::Abort& m) {
  ++aborts;
  std::erase_if(prefills_, [&](const Prefill& p) { return p.start.id == m.id; });
  std::erase_if(computed_, [&](const Prefill& p) { return p.start.id == m.id; });
  std::erase_if(encodes_, [&](const wire::Encode& e) { return e.id == m.id; });
  decodes_.erase(m.id);
  if (const auto found = reserved_.find(m.id); found != reserved_.end()) {
    blocks_free_.insert(found->second.begin(), found->second.end());
    reserved_.erase(found);
  }
  send(wire::Released{m.id, static_cast<std::uint32_t>(blocks_free_.size())});
}

void FakeMember::on(const wire::DecodeReserve& m) {
  TRIMTAB_CHECK(!reserved_.contains(m.id), "reserved twice");
  const std::size_t need = (m.tokens + 127) / 128;
  std::vector<std::uint32_t> blocks;
  if (!refuses && need <= blocks_free_.size()) {
    blocks.assign(blocks_free_.begin(), std::next(blocks_free_.begin(), static_cast<std::ptrdiff_t>(need)));
    for (const std::uint32_t block : blocks) blocks_free_.erase(block);
    reserved_[m.id] = blocks;
  }
  send(wire::Reserved{m.id, blocks, static_cast<std::uint32_t>(blocks_free_.size())});
}

void FakeMember::on(const wire::DecodeStart& m) {
  TRIMTAB_CHECK(reserved_.contains(m.id), "started without a reservation");
  TRIMTAB_CHECK(m.output_limit > 0);
  TRIMTAB_CHECK(m.keys.size() == m.tokens.size() / 128, "keys of all full blocks");
  ++decode_starts;
  decodes_[m.id] = {m, 0};
  schedule();
}

void FakeMember::on(const wire::Encode& m) {
  ++encodes;
  encodes_.push_back(m);
  schedule();
}

void FakeMember::on(const wire::Shutdown&) {
  ++shutdowns;
  die();
  if (rejoins) connect();
}

void FakeMember::schedule() {
  if (paused || std::exchange(scheduled_, true)) return;
  asio::post(context_, [this, alive = alive_] {
    if (!*alive) return;
    scheduled_ = false;
    if (!paused) step();
  });
}

void FakeMember::step() {
  if (!connected_) return;
  if (hello_.role == model::Role::kPrefill) prefill_step();
  if (hello_.role == model::Role::kDecode) decode_step();
  if (hello_.role == model::Role::kVision) encode_one();
}

bool FakeMember::images_ready(const Prefill& p) const {
  for (std::uint32_t i = 0; i < p.start.images.size(); ++i) {
    const model::ImageSpan& span = p.start.images[i];
    if (span.position + span.tokens > p.start.hit_tokens && !p.images_here.contains(i)) return false;
  }
  return true;
}

void FakeMember::finish(const Prefill& p) {
  wire::PrefillDone done;
  done.id = p.start.id;
  done.first_token = next_token(p.start.tokens);
  done.logits_checksum = logits_of(p.start.tokens);
  done.hit_tokens = p.start.hit_tokens;
  if (p.fetch_was_short) done.fetch = fetch_end;
  done.computed_tokens = static_cast<std::uint32_t>(p.start.tokens.size()) - p.start.hit_tokens;
  done.swap_step_ns = swap_step_ns;
  done.swap_stalled_ns = swap_stalled_ns;
  done.thrown_tokens = thrown_tokens;
  done.stored_blocks = done.computed_tokens / 128;
  const wire::WindowHit& window = p.start.window;
  done.fetched_blocks = std::min(window.kv_blocks, fetch_blocks_most.value_or(window.kv_blocks));
  if (window.audit == wire::DriftAudit::kTruth) {
    done.stored_blocks = 0;
    done.logits = true_logits;
  } else if (window.audit == wire::DriftAudit::kKeep && window.exact == 0 && done.hit_tokens > 0) {
    done.logits = drifted_logits;  // the tests offer no states
  }
  if (p.target) done.handed_blocks = static_cast<std::uint32_t>((p.start.tokens.size() + 127) / 128);
  const auto& stops = p.start.stop_tokens;
  if (std::find(stops.begin(), stops.end(), done.first_token) != stops.end())
    done.finish = model::FinishReason::kStop;
  send(done);
}

void FakeMember::prefill_step() {
  if (prefills_.empty() || !images_ready(prefills_.front())) return;
  Prefill& p = prefills_.front();
  const auto whole = static_cast<std::uint32_t>(p.start.tokens.size());
  const std::uint32_t q = std::min(chunk_tokens, whole - p.computed);
  wire::PrefillStep report;
  report.step = ++steps_;
  report.vote_ns = 300'000'000;
  report.budget_ns = 290'000'000;
  report.predicted_ns = 1'000LL * q;
  report.actual_ns = 1'000LL * q;
  report.chunks.push_back({p.start.id, q, p.computed, 1'000LL * q});
  p.computed += q;
  report.waiting = static_cast<std::uint32_t>(prefills_.size());
  report.blocks_free = hello_.blocks_total;
  send(report);
  if (p.computed == whole) {
    Prefill finished = std::move(p);
    prefills_.pop_front();
    const bool waits = finished.start.hand_over != 0 && !finished.target;
    if (waits) {
      computed_.push_back(std::move(finished));
    } else {
      finish(finished);
    }
  }
  if (!prefills_.empty()) schedule();
}

void FakeMember::decode_step() {
  if (decodes_.empty()) return;
  wire::DecodeStep report;
  report.step = ++steps_;
  report.actual_ns = 1'000'000;
  for (auto it = decodes_.begin(); it != decodes_.end();) {
    Decode& d = it->second;
    wire::TokenOut out;
    out.id = d.start.id;
    out.token = next_token(d.start.tokens);
    out.logits_checksum = logits_of(d.start.tokens);
    d.start.tokens.push_back(out.token);
    const auto& stops = d.start.stop_tokens;
    if (std::find(stops.begin(), stops.end(), out.token) != stops.end())
      out.finish = model::FinishReason::kStop;
    else if (++d.generated == d.start.output_limit)
      out.finish = model::FinishReason::kLength;
    report.tokens.push_back(out);
    if (out.finish == model::FinishReason::kNone) {
      report.kv_tokens += d.start.tokens.size();
      ++it;
      continue;
    }
    const auto& blocks = reserved_[out.id];
    blocks_free_.insert(blocks.begin(), blocks.end());
    reserved_.erase(out.id);
    it = decodes_.erase(it);
  }
  report.running = static_cast<std::uint32_t>(decodes_.size());
  report.blocks_free = static_cast<std::uint32_t>(blocks_free_.size());
  send(report);
  if (!decodes_.empty()) schedule();
}

void FakeMember::encode_one() {
  if (encodes_.empty()) return;
  const wire::Encode m = encodes_.front();
  encodes_.pop_front();
  if (fails_images) {
    send(wire::EncodeFailed{m.id, m.image, base::Code::kInternal, "the fake encoder is out of order"});
  } else {
    const auto segment = ipc::Segment::create(m.segment, std::size_t{m.rows} * 8 * sizeof(float));
    TRIMTAB_CHECK(segment.has_value());
    wire::Encoded done;
    done.id = m.id;
    done.image = m.image;
    done.rows = m.rows;
    done.hidden = 8;
    done.text_tokens = 1;
    done.actual_ns = 1'000;
    done.segment = m.segment;
    done.token_ids.assign(m.rows, 7);
    send(done);
  }
  if (!encodes_.empty()) schedule();
}

namespace {

// The other tests find lost, doubled and reordered tokens by this.
TEST(FakeModel, EachTokenDependsOnAllBefore) {
  const auto answer = expected_answer({1, 2, 3}, 4);
  EXPECT_EQ(expected_answer({1, 2, 3, answer[0]}, 3), std::vector(answer.begin() + 1, answer.end()));
  EXPECT_NE(expected_answer({1, 3, 2}, 4), answer);
  EXPECT_NE(next_token({1, 2, 3, answer[0], answer[0]}), answer[1]);
}

}  // namespace

}  // namespace trimtab::agents::testing
