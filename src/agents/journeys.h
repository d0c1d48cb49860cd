#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/decision_log.h"

namespace trimtab::agents {

/// The newest requests' log entries in memory, encoded, for `GET /debug/requests/ID` without touching the
/// disk on the serving thread. Beyond `bytes_max` the oldest requests go.
class Journeys {
 public:
  explicit Journeys(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  /// Entries of request 0 (the cluster itself) are not kept.
  void append(const io::Entry& entry);
  /// By public name (the newest of that name) or number.
  std::optional<io::LoggedRequest> find(const std::string& name_or_id) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t requests() const { return requests_.size(); }

 private:
  struct Kept {
    std::string name;
    std::vector<std::byte> records;
  };
  void evict();
  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::map<model::RequestId, Kept> requests_;
  std::deque<model::RequestId> order_;  // by first entry
  std::map<std::string, model::RequestId> names_;
};

}  // namespace trimtab::agents
