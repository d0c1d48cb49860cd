#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "model/scenario.h"
#include "sim/decode_step.h"
#include "sim/expert_group.h"
#include "sim/host.h"
#include "sim/step_times.h"
#include "sim/verify_group.h"

namespace trimtab::sim {

/// A decode engine: ranks in lockstep, one token (or `tokens_per_step`) for each running request a step. Idle
/// ranks run empty batches. When a rank's KV would not fit, it lets the youngest go (Preempted) until it
/// does.
///
/// **Exact**: each step is an event, and each is reported. **Fast**: between two changes of the batch the
/// step time changes only with the KV's growth, n tokens a step on a rank with n requests. The time of K
/// steps is then K times the mean of the first and the last, each with its own maximum over the ranks: exact
/// when one rank has the most KV throughout, and over by the curvature of the maximum otherwise (it is
/// convex, so the error has one sign). What is drawn per step in the exact form is its mean here.
class DecodeGroup {
 public:
  DecodeGroup(EngineId engine, const model::Scenario& scenario, Host& host);

  void join();
  /// Room of `tokens` on the rank; false when there is none.
  bool reserve(std::uint32_t rank, std::uint32_t slot, std::int64_t tokens);
  /// The KV is in place; the request joins the batch at the next step's start.
  void start(std::uint32_t slot);
  void remove(std::uint32_t slot);
  /// The group died: what it drew until now has streamed, the rest is gone.
  void lose();
  /// The event that `wake` asked for has come.
  void woken(std::uint64_t version);
  /// Fast: tells the machine how far all that runs has come.
  void report_all();

  std::uint64_t steps() const { return step_; }
  Nanos busy() const { return busy_; }
  const StepTimes& times() const { return times_; }
  const LostSteps& lost() const { return lost_; }
  /// Without ranks where experts are not modelled.
  ExpertPicture experts() const { return experts_ ? experts_->picture() : ExpertPicture{}; }
  std::uint64_t preemptions() const { return preemptions_; }
  std::int64_t running() const { return running_; }
  /// Of one rank; the KV as of the last event that came here.
  std::int64_t running(std::uint32_t rank) const {
    return static_cast<std::int64_t>(ranks_[rank].seats.size());
  }
  double kv(std::uint32_t rank) const { return ranks_[rank].kv; }

 private:
  struct Seat {
    std::uint32_t slot = 0;
    std::uint64_t joined = 0;    // step
    std::uint64_t finishes = 0;  // step at whose end its last token is drawn (fast)
    std::int64_t left = 0;       // tokens to draw when it joined
    std::int64_t told = 0;       // of them
    std::int64_t drawn = 0;      // exact
    std::uint64_t pass = 0;
    std::int64_t kv_joined = 0;  // tokens of KV that it came with
    double tokens_per_step = 1;  // expected
    std::uint32_t draft = 0;     // exact, with drafts modelled
  };
  struct Rank {
    std::vector<Seat> seats;
    double kv = 0;  // tokens of what runs, at step_; fractions only with drafts, in the fast form
    double tokens_per_step = 0;  // sum of the seats'
    std::int64_t reserved = 0;   // tokens promised to what does not run yet
    double slowness = 1;         // its attention and dispatch take so many times what the profile says
  };
  struct Finish {
    std::uint64_t step = 0;
    std::uint32_t slot = 0;
    std::uint64_t pass = 0;
    bool operator>(const Finish& other) const {
      return step != other.step ? step > other.step : slot > other.slot;
    }
  };
  void set_speeds();
  void seat_drafts(Seat& seat, const SimRequest& request);
  void leave(Rank& rank, std::size_t index);
  double growth_of(const Rank& rank) const;
  std::int64_t draw();
  std::uint64_t draw_steps(std::int64_t left);
  StepTimes step_times(std::uint64_t ahead) const;
  void overlap(StepTimes& times, double kv_most, double most, double moe_rows) const;
  static Nanos span_of(const StepTimes& first, const StepTimes& last, std::uint64_t steps);
  Nanos span_of(std::uint64_t steps) const;
  double rows_of(std::size_t rank) const;
  double rows_sum() const;
  double padded(double rows) const;
  void look_ahead();
  void choose_rows();
  void note_verified(const StepTimes& times);
  std::uint64_t steps_within(Nanos span) const;
  void go(std::uint64_t steps);
  void catch_up();
  void wake();
  void fast_woken();
  void exact_step();
  std::int64_t drawn_by(const Seat& seat) const;
  void report(std::uint32_t rank, bool only_finished);
  bool overflows(const Rank& rank, std::uint64_t ahead) const;
  std::uint64_t steps_to_overflow() const;
  void preempt();

  EngineId engine_;
  const model::Scenario& scenario_;
  Host& host_;
  base::Prng prng_;
  DecodeStep cost_;
  std::int64_t capacity_ = 0;  // tokens per rank
  std::vector<Rank> ranks_;
  double speeds_ = 0, slowest_ = 1;  // the ranks' speeds together; the largest slowness
  std::vector<Finish> finishes_;     // a heap; entries of seats that left are dropped when they come up
  std::int64_t running_ = 0;
  std::uint64_t step_ = 0;  // whole steps done
  Nanos at_;                // when step_ ended; may lie ahead of now by one step
  bool stepping_ = false;   // exact: a step is under way
  std::uint64_t version_ = 0;
  Nanos busy_;
  StepTimes times_;
  LostSteps lost_;
  std::uint64_t preemptions_ = 0;
  std::optional<ExpertGroup> experts_;
  ExpertLoad load_;  // of the step under way (fast: of the steps until something changes)
  std::unique_ptr<VerifyGroup> verify_;
  VerifiedStep verified_;  // exact: the step under way
  // Scratch.
  std::vector<std::vector<std::uint32_t>> drafts_;
  std::vector<std::int64_t> requests_;
  std::vector<double> kv_;
};

}  // namespace trimtab::sim
