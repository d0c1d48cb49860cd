#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/rank.h"
#include "ipc/channel.h"
#include "model/request.h"
#include "wire/messages.h"

namespace trimtab::engine {

/// For proofs: a control process that a test drives by hand, with real rank processes and a real pool.
class RankHarness {
 public:
  struct Setup {
    std::string model_path;
    std::uint32_t prefill_ranks = 1, decode_ranks = 1;
    std::int64_t prefill_blocks = 24, decode_blocks = 24;
    std::int64_t step_budget_ms = 300;
    model::QuadraticCost cost{0, 1'000'000, 1'000};  // 1 us a token, 1 ns a pair
    std::uint32_t ffn_experts = 8;
    bool pool = true;
    std::string pool_directory;  // empty: memory only
    std::size_t block_bytes = 0;
    std::uint32_t block_layers = 0;  // as the pool cuts a block: hits come layer by layer. 0: in one piece
    model::KvLayout window = {};     // of models with one: the window of the profile
    /// In equal parts.
    model::KvLayout kv() const {
      model::KvLayout layout = window;
      layout.block_bytes = base::Bytes{static_cast<std::int64_t>(block_bytes)};
      for (std::uint32_t i = 0; i < block_layers; ++i)
        layout.layer_bytes.push_back(base::Bytes{layout.block_bytes.value / block_layers});
      return layout;
    }
  };
  explicit RankHarness(Setup setup);
  ~RankHarness();

  /// Starts every process and waits for the ranks' Hello. False (with a line on standard error) otherwise.
  bool start();
  /// Sends Shutdown and reaps; exit codes of the ranks in order: prefill, decode.
  std::vector<int> stop();

  using Place = std::pair<model::Role, std::uint32_t>;
  static Place prefill(std::uint32_t rank) { return {model::Role::kPrefill, rank}; }
  static Place decode(std::uint32_t rank) { return {model::Role::kDecode, rank}; }

  template <class M>
  void send(Place to, const M& message) {
    (void)peers_.at(to).channel->send(wire::to_frame(message));
  }
  /// The next message of type M that `accept` takes; others of its type are kept, in order.
  template <class M, class F>
  std::optional<M> wait(Place from, F&& accept, double seconds = 30) {
    std::optional<M> found;
    wait_frame(from, seconds, [&](const ipc::Frame& frame) {
      if (wire::type_of(frame) != M::kType) return Take::kNo;
      auto message = wire::from_frame<M>(frame);
      if (!message || !accept(*message)) return Take::kNo;
      found = std::move(*message);
      return Take::kWhole;
    });
    return found;
  }
  template <class M>
  std::optional<M> wait_for(Place from, model::RequestId id, double seconds = 30) {
    return wait<M>(
        from, [id](const M& message) { return message.id == id; }, seconds);
  }
  /// Everything of type M that came so far.
  template <class M>
  std::vector<M> all(Place from) {
    std::vector<M> messages;
    while (auto message = wait<M>(
               from, [](const M&) { return true; }, 0))
      messages.push_back(*message);
    return messages;
  }

  struct Answer {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint64_t> checksums;
    wire::PrefillDone prefill;
    model::FinishReason finish = model::FinishReason::kNone;
    bool preempted = false;
    std::string failure;
  };
  struct Ask {
    std::vector<std::int32_t> tokens;
    std::uint32_t output_limit = 8;
    std::uint32_t hit_blocks = 0;
    model::Sampling sampling;
    std::vector<model::ImageSpan> images;
    std::vector<std::int32_t> stop_tokens;
    bool hand_over = true;
    wire::WindowHit window = {};
    std::int64_t headroom_tokens = 128;
    std::uint32_t prefill_rank = 0, decode_rank = 0;
  };
  /// One request from reservation to its last token.
  Answer run(model::RequestId id, const Ask& ask);
  void start_prefill(model::RequestId id, const Ask& ask);
  /// False when refused.
  bool reserve(model::RequestId id, const Ask& ask);
  void start_decode(model::RequestId id, const Ask& ask, std::int32_t first_token);
  Answer follow(model::RequestId id, const Ask& ask);
  std::vector<model::BlockKey> keys(const Ask& ask) const;

  const wire::Hello& hello(Place place) const { return peers_.at(place).hello; }
  pid_t pid(Place place) const { return peers_.at(place).hello.pid; }
  std::optional<int> exit_code(Place place, double seconds);
  std::string kv_socket() const { return runtime_ + "/kv.sock"; }
  const std::string& shm() const { return shm_; }

 private:
  struct Peer {
    std::optional<ipc::Channel> channel;
    wire::Hello hello;
    std::deque<ipc::Frame> inbox;
  };
  enum class Take : std::uint8_t { kNo, kWhole, kPart };  // kPart: what is left of the frame stays
  template <class F>
  bool wait_frame(Place from, double seconds, F&& take) {
    Peer& peer = peers_.at(from);
    const double end = now() + seconds;
    std::size_t next = 0;
    while (true) {
      for (; next < peer.inbox.size(); ++next) {
        const Take taken = take(peer.inbox[next]);
        if (taken == Take::kNo) continue;
        if (taken == Take::kWhole) peer.inbox.erase(peer.inbox.begin() + static_cast<std::ptrdiff_t>(next));
        return true;
      }
      if (!receive_some(end - now()) && now() >= end) return false;
    }
  }
  /// Takes what any rank sent: one that nobody reads from would block, and its group with it.
  bool receive_some(double seconds);
  static double now();
  pid_t spawn_rank(model::Role role, std::uint32_t rank);
  pid_t spawn_pool();

  Setup setup_;
  std::string runtime_, shm_;
  std::optional<ipc::Listener> listener_;
  std::map<Place, Peer> peers_;
  std::map<Place, pid_t> children_;
  std::map<Place, int> exits_;
  pid_t pool_ = 0;
};

}  // namespace trimtab::engine
