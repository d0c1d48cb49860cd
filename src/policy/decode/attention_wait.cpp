#include "policy/decode/attention_wait.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

AttentionWait attention_wait(const AttentionModel& model, std::span<const DecodeLoad> loads) {
  TRIMTAB_CHECK(!loads.empty(), "no ranks");
  AttentionWait wait;
  double sum = 0;
  for (const DecodeLoad& load : loads) {
    const double bytes = model.weight_bytes + static_cast<double>(load.kv.value) * model.kv_bytes_per_token;
    const double time = bytes / model.memory_bytes_per_s;
    wait.slowest_s = std::max(wait.slowest_s, time);
    sum += time;
  }
  wait.mean_s = sum / static_cast<double>(loads.size());
  return wait;
}

}  // namespace trimtab::policy
