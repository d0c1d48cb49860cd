#pragma once

#include <cstdint>
#include <vector>

namespace trimtab::experts {

/// Who may send what: job j can be sent by hosts allowed[first[j]] .. allowed[first[j + 1] - 1], at least
/// one.
struct SendJobs {
  std::vector<std::int32_t> first{0};  // [jobs + 1]
  std::vector<std::int32_t> allowed;   // ascending within a job

  std::int32_t count() const { return static_cast<std::int32_t>(first.size()) - 1; }
};

struct SourceChoice {
  std::vector<std::int32_t> source;  // [jobs]
  std::vector<std::int64_t> sends;   // [hosts]
  /// Certificate: some set of hosts must send all jobs that only they can send; this is its mean, rounded up.
  std::int64_t bound = 0;
};

/// Chooses a source for every job so that the busiest host sends as few as possible, and so the next
/// busiest. An optimal semi-matching: least loaded first, then paths along
/// which a job changes hands are turned until none lowers a load by two or more (Harvey et al. 2003). Cost:
/// O(jobs x allowed) a path, and few paths.
SourceChoice choose_sources(std::int32_t hosts, const SendJobs& jobs);

}  // namespace trimtab::experts
