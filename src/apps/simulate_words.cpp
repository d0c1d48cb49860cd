// What the files and tables of `trimtab simulate` have in common: names of faults, loads of ranks.
#include "apps/simulate_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trimtab::apps {

using model::FaultKind;
using model::Role;

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string_view fault_word(FaultKind kind) {
  switch (kind) {
    case FaultKind::kRank:
      return "rank";
    case FaultKind::kEngine:
      return "engine";
    case FaultKind::kStorageNode:
      return "storage_node";
    case FaultKind::kEntrypoint:
      return "entrypoint";
    case FaultKind::kQueue:
      return "queue";
    case FaultKind::kDrain:
      return "drain";
    case FaultKind::kLateStart:
      return "late_start";
  }
  return "";
}

std::string_view fault_role(const sim::FaultMark& fault) {
  const bool has = fault.kind == FaultKind::kRank || fault.kind == FaultKind::kEngine ||
                   fault.kind == FaultKind::kDrain || fault.kind == FaultKind::kLateStart;
  if (!has) return "";
  if (fault.role == Role::kPrefill) return "prefill";
  return fault.role == Role::kDecode ? "decode" : "vision";
}

std::string fault_name(const sim::FaultMark& fault) {
  if (fault.kind == FaultKind::kQueue) return "the queue stops";
  if (fault.kind == FaultKind::kStorageNode) return fmt::format("storage node {}", fault.target);
  if (fault.kind == FaultKind::kEntrypoint) return fmt::format("entrypoint {}", fault.target);
  const std::string_view role = fault_role(fault);
  const std::string_view place = role == "prefill" ? "engine" : role == "decode" ? "group" : "machine";
  const std::string where = fmt::format("{} {} {}", role, place, fault.target);
  if (fault.kind == FaultKind::kRank) return "a rank of " + where;
  if (fault.kind == FaultKind::kDrain) return "drain of " + where;
  return where;
}

std::vector<report::Mark> fault_marks(const sim::Recording& recording) {
  std::vector<report::Mark> marks;
  for (const sim::FaultMark& fault : recording.faults) {
    const double at = base::to_seconds(fault.from - recording.origin) / recording.seconds();
    marks.push_back({at, fault_name(fault)});
  }
  return marks;
}

std::vector<double> rank_loads(const sim::ExpertPicture& picture, const std::vector<double>& placed) {
  const auto experts = static_cast<std::ptrdiff_t>(picture.popularity.size());
  std::vector<double> loads;
  for (std::ptrdiff_t rank = 0; rank < static_cast<std::ptrdiff_t>(picture.ranks); ++rank) {
    const auto row = placed.begin() + rank * experts;
    loads.push_back(std::accumulate(row, row + experts, 0.0) * picture.ranks);
  }
  return loads;
}

double busiest(const sim::ExpertPicture& picture, const std::vector<double>& placed) {
  const std::vector<double> loads = rank_loads(picture, placed);
  return loads.empty() ? 1.0 : *std::ranges::max_element(loads);
}

}  // namespace trimtab::apps
