#include "swap_in/layer_gate.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ipc/futex.h"
#include "ipc/steady_clock.h"

namespace trimtab::swap_in {

void LayerGate::open(std::uint32_t count) {
  const std::uint32_t before = open_.load(std::memory_order_relaxed);
  TRIMTAB_CHECK(count <= layers_ && count >= (before & kCount), "layers come in order");
  if ((before & kFailed) != 0 || count == before) return;
  open_.store(count, std::memory_order_release);
  ipc::futex_wake_all(open_);
}

void LayerGate::fail(base::Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (failed()) return;
    error_ = std::move(error);
  }
  open_.fetch_or(kFailed, std::memory_order_acq_rel);
  ipc::futex_wake_all(open_);
}

base::Status LayerGate::wait(std::uint32_t layer, base::Nanos timeout) {
  TRIMTAB_CHECK(layer < layers_, "the pass has fewer layers");
  std::uint32_t seen = open_.load(std::memory_order_acquire);
  if ((seen & kCount) > layer) return {};
  const ipc::SteadyClock clock;
  const base::Nanos start = clock.now();
  while ((seen & kCount) <= layer && (seen & kFailed) == 0) {
    const base::Nanos waited = clock.now() - start;
    const base::Nanos left = timeout == base::kForever ? base::kForever : timeout - waited;
    if (left.value <= 0 || !ipc::wait_while_equal(open_, seen, left)) break;
    seen = open_.load(std::memory_order_acquire);
  }
  const base::Nanos waited = clock.now() - start;
  stalled_ns_.fetch_add(waited.value, std::memory_order_relaxed);
  if ((seen & kCount) > layer) return {};
  if ((seen & kFailed) == 0)
    return base::fail(base::Code::kDeadlineExceeded,
                      fmt::format("layer {} of {} was not in device memory after {:.1f} ms", layer, layers_,
                                  base::to_millis(waited)),
                      "swap_in");
  const std::lock_guard lock(mutex_);
  return tl::unexpected<base::Error>(error_);
}

}  // namespace trimtab::swap_in
