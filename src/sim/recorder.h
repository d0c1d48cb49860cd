#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/distribution.h"
#include "sim/recording.h"

namespace trimtab::sim {

struct RecorderOptions {
  std::size_t buckets_max = 256;  // even; when they are full, pairs become one and time goes on twice as wide
  base::Nanos timeline_from;      // after the first arrival
  base::Nanos timeline_span;      // 0: no timeline
  std::size_t spans_max = 200'000;
  std::size_t faults_max = 10'000;
};

/// What the recorder has to know of a scenario before it starts.
struct RecorderShape {
  std::uint32_t prefill_engines = 0, prefill_ranks = 0, decode_groups = 0, decode_ranks = 0;
  std::size_t queue_tiers = 1;
  std::vector<std::int64_t> report_bounds_tokens;
};

/// The state that is looked at twice a bucket.
struct RecorderSample {
  std::vector<std::uint32_t> queued;              // [tier of the queues]
  std::vector<std::vector<bool>> engine_tiers;    // [prefill engine][tier]
  std::vector<double> decode_running, decode_kv;  // [rank]
};

/// Watches a simulation from its hooks and keeps what it looked like over time, in memory that does not grow
/// with the run: so many buckets, which pair up and double their width when time outgrows them. It changes
/// nothing of the run: the same events with and without it.
class Recorder {
 public:
  explicit Recorder(RecorderOptions options = {}) : options_(options) {}
  /// Called by the simulation, once.
  void start(RecorderShape shape);

  // Hooks. `slot`: where the simulation keeps the request.
  bool due(base::Nanos at) const { return begun_ && at >= next_sample_; }
  /// The state as it was from the last call to `until`.
  void sample(base::Nanos until, const RecorderSample& state);
  /// A client asked for the first time; it asked again, elsewhere; its request ended without an answer.
  void arrived(base::Nanos now) { bucket(now).arrivals += 1; }
  void asked_again(base::Nanos now) { bucket(now).retried += 1; }
  void failed(base::Nanos now) { bucket(now).failed += 1; }
  /// `submitted`: at its first try.
  void queued(std::uint32_t slot, std::uint64_t id, std::int64_t prompt_tokens, base::Nanos submitted,
              base::Nanos now);
  void leased(std::uint32_t slot, std::uint32_t engine, std::uint32_t rank, std::int64_t tokens,
              std::int64_t hit, base::Nanos now);
  void first_token(std::uint32_t slot, base::Nanos now);
  void decoding(std::uint32_t slot, std::uint32_t engine, std::uint32_t rank, base::Nanos now);
  /// `output`: tokens it had; 0 when it failed or its client asks again.
  void ended(std::uint32_t slot, std::int64_t output, base::Nanos now);
  /// `worked`: of each rank, without waiting for its peers.
  void prefill_step(std::uint32_t engine, std::uint64_t step, base::Nanos begin, base::Nanos span,
                    const StepTimes& times, std::span<const base::Nanos> worked, std::int64_t requests);
  /// `steps` steps from the `first` on, `times` being those of all of them.
  void decode_steps(std::uint32_t group, std::uint64_t first, std::uint64_t steps, base::Nanos begin,
                    base::Nanos span, const StepTimes& times, std::int64_t requests);

  void fault_began(const FaultMark& fault);
  /// The earliest of its kind there that has no end.
  void fault_over(const FaultMark& fault);
  void experts(ExpertPicture prefill, ExpertPicture decode);

  /// What was recorded; the recorder is empty afterwards.
  Recording take();

 private:
  struct TierBucket {
    Distribution queue, ttft, tpot;
  };
  struct Bucket {
    double samples = 0, arrivals = 0, finished = 0, failed = 0, retried = 0;
    double prompt_tokens = 0, hit_tokens = 0;
    std::vector<TierBucket> tiers;
    std::vector<double> queued, engine_tiers, decode_running, decode_kv;  // sums over the samples
    std::vector<double> prefill_busy;                                     // ns
    StepTimes prefill, decode;
    void add(const Bucket& other);
  };
  struct Request {
    Span::Kind phase = Span::Kind::kQueued;
    std::uint64_t id = 0;
    std::size_t tier = 0;
    std::int64_t prompt = 0;
    base::Nanos arrived, since, first_token;
    std::uint32_t engine = 0, rank = 0;
    bool live = false, counted = false;
  };
  Bucket empty() const;
  Bucket& bucket(base::Nanos at);
  void make_room(base::Nanos at);
  void begin(base::Nanos at);
  Request& request(std::uint32_t slot);
  void close_phase(const Request& request, base::Nanos now);
  bool in_slice(base::Nanos begin, base::Nanos end) const;
  void keep(const Span& span);
  void write_bucket(const Bucket& from, double width_ns, Recording& out) const;
  /// Calls `add(bucket, part)` for each bucket that the span lies in, with the part of it in there.
  template <class Add>
  void spread(base::Nanos from, base::Nanos span, const Add& add);

  RecorderOptions options_;
  RecorderShape shape_;
  bool begun_ = false;
  base::Nanos origin_, width_, next_sample_;
  std::vector<Bucket> buckets_;
  std::vector<Request> requests_;
  std::vector<Span> spans_;
  std::uint64_t spans_left_out_ = 0;
  std::vector<FaultMark> faults_;
  std::uint64_t faults_left_out_ = 0;
  ExpertPicture prefill_experts_, decode_experts_;
};

}  // namespace trimtab::sim
