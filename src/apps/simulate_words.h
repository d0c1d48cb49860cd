#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/charts.h"
#include "sim/recording.h"

namespace trimtab::apps {

/// "1 request", "2 requests": of nouns whose plural takes an s.
std::string counted(std::uint64_t count, std::string_view noun);

/// "rank": the kind's word of the fault plan; "rank of decode group 3": and where.
std::string_view fault_word(model::FaultKind kind);
std::string fault_name(const sim::FaultMark& fault);
/// "prefill", "decode", "vision"; "" where the kind of fault has no role.
std::string_view fault_role(const sim::FaultMark& fault);
/// Where faults begin, on an axis of the recording's buckets.
std::vector<report::Mark> fault_marks(const sim::Recording& recording);

/// Loads of the ranks over the mean, [ranks], of a placement [ranks, experts]; the busiest of them.
std::vector<double> rank_loads(const sim::ExpertPicture& picture, const std::vector<double>& placed);
double busiest(const sim::ExpertPicture& picture, const std::vector<double>& placed);

}  // namespace trimtab::apps
