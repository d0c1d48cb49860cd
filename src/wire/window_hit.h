#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trimtab::wire {

/// A machine that held a window snapshot when the entrypoint was told last (kv::SnapshotDirectory::Holder),
/// and where it answers.
struct StateHolder {
  std::uint32_t machine = 0;
  std::uint64_t epoch = 0, sequence = 0;
  std::string host;
  std::uint16_t port = 0;
  template <class A>
  void visit(A& a) {
    a(machine, epoch, sequence, host, port);
  }
};

/// The window state after so many blocks of the prompt, and who holds it.
struct StateOffer {
  std::uint32_t blocks = 0;
  std::vector<StateHolder> holders;
  template <class A>
  void visit(A& a) {
    a(blocks, holders);
  }
};

/// How a prefill takes part in measuring the drift of `approximate` hits.
enum class DriftAudit : std::uint8_t {
  kNone,
  kKeep,   // PrefillDone has the row of logits if the hit began approximately
  kTruth,  // the same prompt again, exact whatever `exact` says, from no state: nothing is stored or handed
           // over, and PrefillDone has the row
};

/// What the hit rule needs at a rank of a model with sliding-window layers. The rank reads the `kv_blocks`
/// leading blocks and decides again with what it got (kv::decide_hit), so that both sides come to the same.
struct WindowHit {
  std::uint32_t kv_blocks = 0;
  std::uint8_t exact = 0;          // the mode: kv::WindowMode
  std::vector<StateOffer> offers;  // by blocks
  DriftAudit audit = DriftAudit::kNone;
  template <class A>
  void visit(A& a) {
    a(kv_blocks, exact, offers, audit);
  }
};

}  // namespace trimtab::wire
