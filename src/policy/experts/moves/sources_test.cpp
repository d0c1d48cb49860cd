#include "policy/experts/moves/sources.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

SendJobs random_jobs(std::int32_t hosts, std::int32_t count, base::Prng& prng) {
  SendJobs jobs;
  for (std::int32_t job = 0; job < count; ++job) {
    const auto sure = static_cast<std::int32_t>(prng.below(at(hosts)));
    for (std::int32_t host = 0; host < hosts; ++host) {
      if (host == sure || prng.below(3) == 0) jobs.allowed.push_back(host);
    }
    jobs.first.push_back(static_cast<std::int32_t>(jobs.allowed.size()));
  }
  return jobs;
}

/// The least sorted-descending loads of all ways.
void try_all(const SendJobs& jobs, std::int32_t job, std::vector<std::int64_t>& loads,
             std::vector<std::int64_t>& best) {
  if (job == jobs.count()) {
    std::vector<std::int64_t> sorted = loads;
    std::ranges::sort(sorted, std::greater<>());
    if (best.empty() || sorted < best) best = sorted;
    return;
  }
  for (std::int32_t i = jobs.first[at(job)]; i < jobs.first[at(job) + 1]; ++i) {
    ++loads[at(jobs.allowed[at(i)])];
    try_all(jobs, job + 1, loads, best);
    --loads[at(jobs.allowed[at(i)])];
  }
}

RC_GTEST_PROP(Sources, BusiestAndAllBelowAreTheLeastOfAllWays, (std::uint64_t seed)) {
  base::Prng prng(seed);
  const auto hosts = static_cast<std::int32_t>(1 + prng.below(4));
  const SendJobs jobs = random_jobs(hosts, static_cast<std::int32_t>(prng.below(8)), prng);
  const SourceChoice choice = choose_sources(hosts, jobs);
  std::vector<std::int64_t> counted(at(hosts)), loads(at(hosts)), best;
  for (std::int32_t job = 0; job < jobs.count(); ++job) {
    const std::int32_t source = choice.source[at(job)];
    RC_ASSERT(std::find(jobs.allowed.begin() + jobs.first[at(job)],
                        jobs.allowed.begin() + jobs.first[at(job) + 1],
                        source) != jobs.allowed.begin() + jobs.first[at(job) + 1]);
    ++counted[at(source)];
  }
  RC_ASSERT(counted == choice.sends);
  try_all(jobs, 0, loads, best);
  std::ranges::sort(counted, std::greater<>());
  RC_ASSERT(counted == best);
  RC_ASSERT(choice.bound == best.front());
}

RC_GTEST_PROP(Sources, CertificateHoldsOnLargeCases, (std::uint64_t seed)) {
  base::Prng prng(seed);
  const auto hosts = static_cast<std::int32_t>(1 + prng.below(64));
  const SendJobs jobs = random_jobs(hosts, static_cast<std::int32_t>(prng.below(400)), prng);
  const SourceChoice choice = choose_sources(hosts, jobs);
  RC_ASSERT(choice.bound == *std::ranges::max_element(choice.sends));
}

}  // namespace
}  // namespace trimtab::experts
