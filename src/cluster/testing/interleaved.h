#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/hash.h"
#include "cluster/cluster.h"
#include "cluster/pull_agents.h"

namespace trimtab::cluster::testing {

/// One request over one prefill rank, one decode rank (two for moves) and one encoder, with every order of
/// what can happen open: at each point the caller picks one of `choices()`. Messages wait in both directions
/// until they are picked, so answers cross with aborts in every possible way.
class Interleaved {
 public:
  /// What may happen once, at any point, besides the request's own course.
  enum class Special {
    kNone,
    kCancel,
    kLosePrefill,
    kLoseDecode,
    kLoseEncoder,
    kDeadline,
    kLease,
    kRefuse,
    kHandOver,
    kMove,         // to the other rank
    kMoveAndBack,  // and once more
    kMoveCancel    // and then the client leaves
  };
  enum class Work { kDown, kUp, kWork, kMatch, kSpecial, kJoin, kTime };
  struct Choice {
    Work work = Work::kUp;
    Place place;
  };

  Interleaved(const model::ClusterConfig& config, const model::Profile& profile,
              std::unique_ptr<TierQueue> queue, Special special, bool with_image)
      : agents_(config, profile), special_(special), image_(with_image) {
    cluster_ = Cluster::make(config, profile, std::move(queue)).value();
    moves_ = special == Special::kMove || special == Special::kMoveAndBack || special == Special::kMoveCancel;
    specials_left_ = special == Special::kMoveAndBack || special == Special::kMoveCancel ? 2 : 1;
    places_of_all_ = {prefill_, decode_, encoder_};
    if (moves_) places_of_all_.push_back(other_);
    for (const Place& place : places_of_all_) step(Joined{place, 64});
    Submitted submitted{kId, TokenCount{kPrompt}, TokenCount{wanted()}, {}, base::kForever};
    if (special == Special::kDeadline) submitted.timeout = Nanos{1'000'000'000};
    if (with_image) submitted.images.push_back({10, 20, 64, 64, 16, {}});
    step(submitted);
  }

  std::vector<Choice> choices() const {
    std::vector<Choice> all;
    if (match_) all.push_back({Work::kMatch, {}});
    for (const Place& place : places_of_all_) {
      const auto found = places_.find(place);
      if (found == places_.end()) continue;
      if (!found->second.down.empty()) all.push_back({Work::kDown, place});
      if (!found->second.up.empty()) all.push_back({Work::kUp, place});
      if (can_work(place)) all.push_back({Work::kWork, place});
      if (found->second.gone) all.push_back({Work::kJoin, place});
    }
    bool own = special_ != Special::kNone && special_ != Special::kRefuse && special_ != Special::kHandOver &&
               specials_left_ > 0;
    // A move of a request that does not run is nothing.
    if (moves_ && !(special_ == Special::kMoveCancel && specials_left_ == 1))
      own = own && (decoding_[0].running || decoding_[1].running);
    // When nothing else can happen, time goes on.
    if (all.empty() && live_ && timer_) all.push_back({Work::kTime, {}});
    // After the request's end a cancel, a deadline or a lease has nothing to meet.
    if (own && !all.empty()) all.push_back({Work::kSpecial, {}});
    return all;
  }
  void take(const Choice& choice);

  /// Equal for equal states: what the machine was told so far decides its state, the rest is what waits and
  /// what the engines hold. Orders that come to the same need to be followed only once.
  std::uint64_t fingerprint() const;

  const Cluster& cluster() const { return *cluster_; }
  const PullAgents& agents() const { return agents_; }
  bool finished() const { return finished_; }
  bool failed() const { return failed_; }
  bool cancelled() const { return cancelled_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t wanted() const { return moves_ ? 4 : 3; }
  const std::vector<std::string>& violations() const { return violations_; }
  std::size_t held() const {
    return prefill_state_.has_value() + decoding_[0].there + decoding_[1].there + encoding_ + embeddings_;
  }
  const std::vector<std::string>& story() const { return story_; }

 private:
  static constexpr RequestId kId{1};
  static constexpr std::int64_t kPrompt = 200;
  struct Channel {
    std::deque<Action> down;
    std::deque<Event> up;
    bool gone = false;
  };
  struct Prefilling {
    std::int64_t tokens = 0;
    bool target = false, embeddings = false, stepped = false, computed = false, hand_over = true;
    std::uint64_t target_generation = 0;
    std::uint32_t target_rank = 0;
  };
  struct Decoding {
    bool there = false, running = false, written = false;
    std::int64_t position = 0, left = 0;
  };
  bool can_work(const Place& place) const {
    if (place == prefill_) {
      if (!prefill_state_ || !prefill_state_->embeddings) return false;
      // Without a target the finished KV waits, as in the reference engine.
      return !prefill_state_->computed || prefill_state_->target || !prefill_state_->hand_over;
    }
    if (place.role == model::Role::kDecode) return decoding_[place.rank].running;
    return encoding_;
  }
  void step(const Event& event);
  void perform(const Action& action, const Event& event);
  void engine_reads(const Place& place, const Action& action);
  void engine_works(const Place& place);
  void special();
  void lose(const Place& place);
  void up(const Place& place, Event event) { places_[place].up.push_back(std::move(event)); }

  const Place prefill_{model::Role::kPrefill, EngineId{0}, 0};
  const Place decode_{model::Role::kDecode, EngineId{0}, 0};
  const Place encoder_{model::Role::kVision, EngineId{0}, 0};
  const Place other_{model::Role::kDecode, EngineId{0}, 1};
  std::vector<Place> places_of_all_;
  bool moves_ = false;
  PullAgents agents_;
  Special special_;
  bool image_;
  std::unique_ptr<Cluster> cluster_;
  std::map<Place, Channel> places_;
  std::optional<std::int64_t> match_;
  std::optional<Prefilling> prefill_state_;
  std::array<Decoding, 2> decoding_;  // by rank
  bool encoding_ = false;
  std::uint64_t decode_generation_ = 0;
  std::int64_t embeddings_ = 0;  // at the host
  Nanos now_;
  std::optional<Nanos> timer_;
  bool live_ = true, finished_ = false, failed_ = false, cancelled_ = false;
  int specials_left_ = 1;
  std::int64_t tokens_ = 0;
  std::uint64_t told_ = 0;                               // hash of all events stepped
  std::map<Place, std::deque<std::int64_t>> positions_;  // of the tokens in the up queues
  std::optional<std::int64_t> position_;                 // of the token in the event under way
  std::vector<std::string> violations_, story_;
};

template <class Variant>
std::uint64_t hash_of(const Variant& value) {
  base::Writer bytes;
  std::visit([&bytes](const auto& one) { bytes(one); }, value);
  return base::checksum(bytes.take(), value.index());
}

inline std::uint64_t Interleaved::fingerprint() const {
  std::uint64_t hash = told_;
  const auto add = [&hash](std::int64_t value) { hash = base::mix(hash, static_cast<std::uint64_t>(value)); };
  for (const auto& [place, channel] : places_) {
    add(static_cast<std::int64_t>(place.role));
    for (const Action& action : channel.down) add(static_cast<std::int64_t>(hash_of(action)));
    add(-1);
    for (const Event& event : channel.up) add(static_cast<std::int64_t>(hash_of(event)));
    add(channel.gone);
  }
  add(match_.value_or(-1));
  if (prefill_state_) {
    add(prefill_state_->target_rank);
    add(prefill_state_->tokens * 32 + prefill_state_->computed * 16 + prefill_state_->hand_over * 8 +
        prefill_state_->target * 4 + prefill_state_->embeddings * 2 + prefill_state_->stepped);
  }
  add(-2);
  for (const Decoding& one : decoding_) {
    add(one.there ? one.position * 64 + one.left * 4 + one.running * 2 + one.written : -3);
  }
  add(static_cast<std::int64_t>(decode_generation_ * 2) +
      (prefill_state_ && prefill_state_->target_generation == 1));
  add(embeddings_ * 8 + encoding_ * 4 + live_);
  add(specials_left_);
  return hash;
}

}  // namespace trimtab::cluster::testing

#include "cluster/testing/interleaved_steps.h"
