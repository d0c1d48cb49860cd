#include "cluster/records.h"

namespace trimtab::cluster {

std::string_view kind(const Record& record) {
  // In the order of RecordBody.
  static constexpr std::array<std::string_view, std::variant_size_v<RecordBody>> kKinds = {
      "submitted", "admission", "match",    "queue",     "lease",        "vision",
      "encoded",   "decode",    "reserved", "chunk",     "prefill_done", "decode_start",
      "requeue",   "finished",  "failed",   "cancelled", "allocation",   "membership"};
  return kKinds[record.body.index()];
}

}  // namespace trimtab::cluster
