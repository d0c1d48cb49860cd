#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/outcomes.h"
#include "sim/prefix_cache.h"

namespace trimtab::sim {

using base::Nanos;

/// The pool behind the prefix hits: what it holds, and how long reads take. With storage nodes each block
/// lives on the node that its id's hash names: a prefix is spread over all of them, and one node that is down
/// cuts hits at the first of its blocks. Every node has its share of the capacity, its own order of leaving
/// and its own queue of reads; an engine's machine has a queue of its own beside them. Without nodes storage
/// never limits.
class Pool {
 public:
  /// `block_tokens`: of the trace's block ids; 0: the trace knows none. Errors: an unknown eviction order.
  static base::Result<Pool> make(const model::Scenario& scenario, std::int64_t block_tokens);

  struct Matched {
    std::int64_t tokens = 0;       // leading, in whole blocks of the trace
    std::int64_t unreachable = 0;  // more of them, stored but behind a node that is down
  };
  Matched match(std::span<const model::BlockRun> runs, Nanos now);
  /// The first `blocks` of the runs are stored, except where their node is down.
  void store(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos now);

  /// When the leading blocks of a request were matched, and how many; when those behind them were stored.
  struct Told {
    std::int64_t matched_blocks = 0;
    Nanos matched, stored;
  };
  /// The answer to a request is whole, whose first `blocks` are stored.
  void answered(std::span<const model::BlockRun> runs, std::int64_t blocks, const Told& told,
                std::int64_t tokens, Nanos now);

  /// A request's prefix for reading: the trace's blocks, then blocks of its own (what it generated), which
  /// are as old as `since`.
  struct Prefix {
    std::span<const model::BlockRun> runs;
    std::uint64_t owner = 0;
    Nanos since;
  };
  /// How many of the leading `tokens` can be read now. A request's own blocks count as stored.
  std::int64_t readable(const Prefix& prefix, std::int64_t tokens) const;
  struct Read {
    Nanos first;  // the first owner layer of everything is there
    Nanos all;
  };
  /// Queues the reads of the leading `tokens` for a prefill engine.
  Read read(std::uint32_t engine, const Prefix& prefix, std::int64_t tokens, Nanos now);

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(read_free_.size()); }
  void lose(std::uint32_t node, Nanos now);
  /// `empty`: its content did not outlive the fault.
  void restore(std::uint32_t node, bool empty, Nanos now);
  /// Changes whenever a node goes down or comes back empty: what was matched may not be there any more.
  std::uint64_t epoch() const { return epoch_; }

  std::int64_t evicted() const;
  /// What each node has delivered and was asked for.
  StorageOutcome outcome() const { return {node_bytes_, node_outcomes_}; }

 private:
  Pool(const model::Scenario& scenario, std::int64_t block_tokens);
  std::uint32_t node_of(std::uint64_t id) const;
  std::uint64_t own_id(const Prefix& prefix, std::int64_t block) const;
  template <class Visit>
  void each_block(const Prefix& prefix, std::int64_t tokens, const Visit& visit) const;

  std::int64_t block_tokens_;
  std::unique_ptr<policy::CostModel> cost_;  // of the model, for orders that weigh it
  double bytes_per_token_, node_bytes_per_s_, engine_bytes_per_s_;
  std::int64_t owners_;  // layers that own KV
  bool layerwise_;
  std::vector<PrefixCache> caches_;  // of each node; one without nodes
  std::vector<std::uint32_t> down_;  // of each node: faults that hold it down
  std::vector<Nanos> wiped_;         // of each node: when its content was lost
  std::vector<Nanos> read_free_;     // of each node: when its reads are done
  std::vector<Nanos> engine_free_;   // of each prefill engine's machine
  std::vector<double> node_bytes_, reading_;
  std::vector<StorageNode> node_outcomes_;
  std::uint64_t epoch_ = 0;
};

}  // namespace trimtab::sim
