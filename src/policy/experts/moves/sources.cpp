#include "policy/experts/moves/sources.h"

#include <algorithm>

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

class Balancer {
 public:
  Balancer(std::int32_t hosts, const SendJobs& jobs)
      : jobs_(jobs), sent_by_(at(hosts)), via_job_(at(hosts)), via_host_(at(hosts)) {
    choice_.source.resize(at(jobs.count()));
    choice_.sends.resize(at(hosts));
  }

  SourceChoice run() {
    for (std::int32_t job = 0; job < jobs_.count(); ++job) assign(job, least_loaded(job));
    // Each turned path lowers the sum of squares, so this ends; a pass without any is the proof.
    for (bool turned = true; turned;) {
      turned = false;
      for (std::int32_t host = 0; host < hosts(); ++host) {
        while (relieve(host)) turned = true;
      }
    }
    choice_.bound = bound();
    return std::move(choice_);
  }

 private:
  std::int32_t hosts() const { return static_cast<std::int32_t>(sent_by_.size()); }

  std::int32_t least_loaded(std::int32_t job) const {
    std::int32_t best = jobs_.allowed[at(jobs_.first[at(job)])];
    for (std::int32_t i = jobs_.first[at(job)]; i < jobs_.first[at(job) + 1]; ++i) {
      const std::int32_t host = jobs_.allowed[at(i)];
      if (choice_.sends[at(host)] < choice_.sends[at(best)]) best = host;
    }
    return best;
  }

  void assign(std::int32_t job, std::int32_t host) {
    choice_.source[at(job)] = host;
    ++choice_.sends[at(host)];
    sent_by_[at(host)].push_back(job);
  }

  /// Hosts that jobs of `from` can be handed to, in one or more steps; stops at the first whose load is at
  /// most `enough`, and returns it, or -1.
  std::int32_t search(std::int32_t from, std::int64_t enough) {
    std::fill(via_host_.begin(), via_host_.end(), -1);
    via_host_[at(from)] = from;
    reached_.assign(1, from);
    for (std::size_t next = 0; next < reached_.size(); ++next) {
      const std::int32_t host = reached_[next];
      for (const std::int32_t job : sent_by_[at(host)]) {
        for (std::int32_t i = jobs_.first[at(job)]; i < jobs_.first[at(job) + 1]; ++i) {
          const std::int32_t other = jobs_.allowed[at(i)];
          if (via_host_[at(other)] >= 0) continue;
          via_host_[at(other)] = host;
          via_job_[at(other)] = job;
          if (choice_.sends[at(other)] <= enough) return other;
          reached_.push_back(other);
        }
      }
    }
    return -1;
  }

  bool relieve(std::int32_t host) {
    if (choice_.sends[at(host)] < 2) return false;
    std::int32_t to = search(host, choice_.sends[at(host)] - 2);
    if (to < 0) return false;
    while (to != host) {
      const std::int32_t from = via_host_[at(to)], job = via_job_[at(to)];
      std::vector<std::int32_t>& mine = sent_by_[at(from)];
      mine.erase(std::ranges::find(mine, job));
      --choice_.sends[at(from)];
      assign(job, to);
      to = from;
    }
    return true;
  }

  std::int64_t bound() {
    const auto busiest = std::ranges::max_element(choice_.sends);
    if (busiest == choice_.sends.end()) return 0;
    search(static_cast<std::int32_t>(busiest - choice_.sends.begin()), -1);
    // The jobs of reached hosts can go to reached hosts only.
    std::int64_t total = 0;
    for (const std::int32_t host : reached_) total += choice_.sends[at(host)];
    const auto count = static_cast<std::int64_t>(reached_.size());
    return (total + count - 1) / count;
  }

  const SendJobs& jobs_;
  SourceChoice choice_;
  std::vector<std::vector<std::int32_t>> sent_by_;
  std::vector<std::int32_t> via_job_, via_host_, reached_;
};

}  // namespace

SourceChoice choose_sources(std::int32_t hosts, const SendJobs& jobs) { return Balancer(hosts, jobs).run(); }

}  // namespace trimtab::experts
