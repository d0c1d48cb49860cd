#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cluster/actions.h"
#include "cluster/events.h"
#include "cluster/life.h"
#include "cluster/membership.h"
#include "cluster/releases.h"
#include "cluster/status.h"
#include "cluster/tier_queue.h"
#include "model/cluster_config.h"
#include "model/profile.h"
#include "policy/admission/admission.h"
#include "policy/cost/cost_model.h"
#include "policy/decode/policy.h"
#include "policy/prefill/tiers.h"
#include "policy/vision/vision.h"

namespace trimtab::cluster {

/// What is ours to decide and not in the configuration file.
struct MachineLimits {
  std::uint32_t redos_max = 3;         // after failures (lost rank, expired lease, refusal by an engine)
  std::uint32_t encode_tries_max = 3;  // per image
  /// The decode place is reserved once what is left of the prompt fits this many step budgets: one for the
  /// step, one for the answer's way back.
  std::int64_t reserve_ahead_steps = 2;
  /// A computed prompt may wait in its prefill rank for a decode place this long.
  Nanos computed_hold{1'000'000'000};
  /// A decode rank that refused is left alone until it reports, at most this long.
  Nanos refusal_pause{200'000'000};
  /// A moved request comes back through the pool. When the pool has not kept all but this much of one, moves
  /// cost prefill time: none is made for a while.
  TokenCount move_loss_max{2 * model::kBlockTokens};
  Nanos moves_pause{60'000'000'000};
};

/// The inside of `Cluster`: one state, its events handled in one file each part of a request's life.
///   machine.cpp        dispatch, time, joins, losses, drains
///   machine_status.cpp what stands where
///   machine_life.cpp   submission, match, requeue, and every way a request ends
///   machine_prefill.cpp, machine_vision.cpp, machine_decode.cpp   the three kinds of engines
///   machine_moves.cpp  running requests that change decode ranks
class Machine {
 public:
  struct Parts {
    std::unique_ptr<TierQueue> queue;
    std::unique_ptr<policy::DecodePolicy> decode;
    std::unique_ptr<policy::VisionPolicy> vision;
  };
  Machine(const model::ClusterConfig& config, const model::Profile& profile, Parts parts);

  void step(const Event& event, Nanos now, std::vector<Action>& out);
  ClusterStatus status() const;
  Census census() const;
  bool ready() const { return members_.complete(); }
  void keep_records(bool keep) { records_ = keep; }

 private:
  // machine.cpp
  void on(const Joined& event);
  void on(const Lost& event);
  void on(const Drain& event);
  void on(const Timer& event);
  void on(const Released& event);
  void on(const RequestFailed& event);
  void on_time();
  void set_timer();
  Nanos next_instant();
  void allocate(bool always_log);
  void settle_lost(Place place);
  void drop_group(Place place, const std::string& why);
  EngineStatus engine_status(model::Role role, EngineId engine) const;
  RankStatus rank_status(Place place) const;

  // machine_life.cpp
  void on(const Submitted& event);
  void on(const Matched& event);
  void on(const Cancelled& event);
  bool fits_somewhere(Life& life);
  bool admit(Life& life, Nanos work);
  void enqueue(Life& life, std::string reason);
  /// Back to the match with what was generated. Holdings elsewhere have been let go already. `counts`:
  /// against redos_max; beyond it the request fails with `code`.
  void requeue(Life& life, Place from, bool counts, base::Code code, const std::string& why);
  void finish(Life& life, model::FinishReason reason);
  void fail(Life& life, base::Code code, std::string message,
            std::optional<Nanos> retry_after = std::nullopt);
  /// Aborts it wherever it is and forgets it.
  void erase(Life& life);
  void let_go_prefill(Life& life);
  void let_go_seat(Life& life);
  void abort(RequestId id, Place place, std::optional<Place> then = std::nullopt);

  // machine_prefill.cpp
  void on(const Pull& event);
  void on(const PrefillStepped& event);
  void on(const PrefillDone& event);
  void serve();
  void grant(const policy::Grant& granted);
  void start_prefill(Life& life);
  void prefill_ended(Life& life);
  void prefill_lost(Life& life, Place place, base::Code code, const std::string& why);
  void wait_for_target(Life& life);
  void give_up_waiting();
  void expire_leases();
  void spoke(Place place);
  void extend_leases(Place place);
  Nanos quota_left(const Life& life) const;
  bool seat_is_due(const Life& life) const;

  // machine_vision.cpp
  void on(const Encoded& event);
  void on(const EncodeFailed& event);
  void encode_images(Life& life);
  void encode(Life& life, std::uint32_t image);
  void send_ready_images(Life& life);
  void drop_ready_images(Life& life);
  /// `counts`: as one of the tries that an image has.
  void encode_failed(Life& life, std::uint32_t image, base::Code code, const std::string& message,
                     bool counts = true);
  void encoder_let_go(Life& life, std::uint32_t image);
  void lose_encoder(EncoderId encoder);
  bool same_loss(ImageLife& image, model::MachineId machine) const;
  void retry_waiting_images();
  ImageLife* encoding(RequestId id, std::uint32_t image, EncoderId from);

  // machine_decode.cpp
  void on(const Reserved& event);
  void on(const DecodeStepped& event);
  void on(const Preempted& event);
  /// Looks for a decode place; true when one was asked for. False: held, or the request ended.
  bool want_seat(Life& life);
  policy::DecodeRequest seat_request(const Life& life) const;
  policy::DecodeDecision choose_seat(const Life& life, const std::vector<RankId>& excluded);
  /// Acts on the decision; true when a place was asked for.
  bool take_seat(Life& life, const policy::DecodeDecision& decision, bool parked);
  void ask_seat(Life& life, TokenCount reserve);
  TokenCount room_for(const Life& life) const;
  void hold_seat(Life& life, bool parked);
  /// The life goes on while a decode rank still has to let go of it: the room stays counted, under another
  /// id.
  void quarantine(Life& life, Place place);
  std::vector<RankId> unanswered(RequestId id) const;
  void seat_lost(Life& life, base::Code code, const std::string& why);
  void decode_ended(Life& life);
  void reopen(RankId rank);
  void retry_held();
  void retry_in_order();
  void retry_window();
  /// Under which id the decode account has what the place holds of the request.
  RequestId account_at(Place place, RequestId id) const;
  void log_choice(Life& life, const policy::DecodeDecision& decision, TokenCount reserve);

  // machine_moves.cpp
  void on(const Move& event);
  bool movable(const Life& life, RankId to) const;
  void move(Life& life, RankId to, const std::string& why);
  void plan_moves(RankId reported);
  bool take_bound(Life& life);
  bool give_up_bound(const policy::DecodeDecision& decision);
  void came_back(const Life& life);

  // shared
  void enter(Life& life, Stage stage);
  std::uint32_t stages_of(Stage stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  Life* find(RequestId id);
  /// The request, if it holds this prefill or decode place and what the place says is not of the past.
  Life* holder(RequestId id, Place place);
  const Life* find(RequestId id) const;
  void hold(Place place, RequestId id);
  void unhold(Place place, RequestId id);
  template <class T>
  void emit(T action) {
    out_->emplace_back(std::move(action));
  }
  /// `body` makes the record; it is not called when nobody keeps records.
  template <class Make>
  void log(RequestId id, const Make& body) {
    if (records_) out_->emplace_back(Log{Record{id, now_, RecordBody{body()}}});
  }

  model::ClusterConfig config_;
  MachineLimits limits_;
  policy::CostModel cost_;
  std::unique_ptr<TierQueue> queue_;
  std::unique_ptr<policy::DecodePolicy> decode_;
  std::unique_ptr<policy::VisionPolicy> vision_;
  policy::AdmissionPolicy admission_;
  policy::TierAllocator allocator_;
  Membership members_;
  Releases releases_;

  std::unordered_map<RequestId, Life> lives_;  // looked up, never iterated
  std::vector<std::set<RequestId>> holdings_;  // by Membership::index
  std::set<std::pair<Nanos, RequestId>> deadlines_;
  std::set<std::pair<Nanos, RequestId>> held_;  // Seat::kWanted, by wanted_since
  std::set<std::pair<Nanos, RequestId>>
      computed_;                        // wait in their prefill rank for a target, by the end of patience
  std::set<RequestId> images_waiting_;  // with an image that found no encoder
  std::uint64_t encoders_joined_ = 0;
  // Images of requests that ended at an encoder which has not answered the abort yet.
  std::map<std::pair<Place, RequestId>, std::vector<std::uint32_t>> aborted_images_;
  std::map<RankId, Nanos> refused_;     // closed until then or until its next report
  std::set<EngineId> silent_;           // let a lease run out: no work before they speak again
  std::vector<std::uint32_t> reports_;  // by Membership::index
  std::map<EngineId, policy::TierRange> ranges_;
  std::vector<Nanos> demand_;              // per tier, of the last round
  std::array<std::uint32_t, 5> stages_{};  // requests in each Stage
  Nanos round_ends_;
  Nanos queue_due_;                        // when the queue has something of its own to do
  bool settled_ = false;                   // nothing has changed since serve() found nothing to do
  std::vector<policy::RankOffer> offers_;  // scratch
  std::optional<Nanos> timer_;
  TokenCount held_tokens_;
  std::size_t parked_ = 0;                                        // of held_
  std::map<std::pair<Place, RequestId>, RequestId> quarantined_;  // the id in the decode account
  std::uint64_t alias_ = UINT64_MAX;
  std::vector<policy::DecodeMove> planned_;  // until the rank that lets go reports
  std::set<RequestId> bound_;                // Seat::kBound
  Nanos moves_from_;                         // none before

  bool records_ = true;
  Nanos now_;
  std::vector<Action>* out_ = nullptr;  // of the step under way
};

}  // namespace trimtab::cluster
