#pragma once

#include <string>

#include "apps/instance.h"
#include "base/error.h"

namespace trimtab::apps {

/// Makes the directory, for this user alone, unless it is there. kIo: it cannot be made, or is another's.
base::Status make_own_directory(const std::string& path);

/// The two directories where the processes of one instance meet (sockets in /tmp, shared segments in
/// /dev/shm), held by a lock: two supervisors that start on one port at the same moment would delete each
/// other's sockets.
class Place {
 public:
  /// Empties and locks both. kUnavailable when another `serve` holds them, kIo when they cannot be made (they
  /// belong to someone else, or the disk is full). What supervisors that were killed left behind, under any
  /// port, is removed first: its shared memory is of no use to anyone.
  static base::Result<Place> take(const Instance& instance);
  Place(Place&& other) noexcept;
  Place& operator=(Place&&) = delete;
  /// Removes both directories.
  ~Place();

 private:
  Place(const Instance& instance, int lock)
      : runtime_dir_(instance.runtime_dir), shm_dir_(instance.shm_dir), lock_(lock) {}

  std::string runtime_dir_;
  std::string shm_dir_;
  int lock_;  // descriptor; -1 once moved from
};

}  // namespace trimtab::apps
