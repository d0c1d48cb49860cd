#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::file::testing {

using kv_target::testing::content_of;
using kv_target::testing::Driver;
using kv_target::testing::shard_name;

/// What a target was asked and what it confirmed, and so what may be found after it died. Version 0: absent.
class History {
 public:
  static std::size_t bytes_of(std::uint64_t n, std::uint64_t version) {
    return 1 + (n * 7'919 + version * 104'729) % 14'000;
  }
  static std::vector<std::byte> content(std::uint64_t n, std::uint64_t version) {
    return content_of(shard_name(n), bytes_of(n, version), version);
  }

  void asked(std::uint64_t n, std::uint64_t version) { shards_[n].asked.push_back(version); }
  /// Requests of one shard are confirmed in the order in which they were made. `done`: it took effect; else
  /// it may still turn out to have, whole.
  void confirmed(std::uint64_t n, bool done) {
    Shard& shard = shards_[n];
    const std::uint64_t version = shard.asked.front();
    shard.asked.erase(shard.asked.begin());
    if (!done) {
      shard.doubtful.push_back(version);
      return;
    }
    shard.sure = version;
    shard.doubtful.clear();
  }

  /// How many shards are not what they may be; `words` says how. Each that was in doubt is sure from now on.
  int judge(Target& target, std::string& words) {
    Driver drive(target);
    std::map<ShardName, std::uint32_t> told;
    Cursor nothing;
    drive.follow(nothing, told, 1'000);
    int wrong = 0;
    for (auto& [n, shard] : shards_) {
      const auto found = drive.content(shard_name(n));
      std::vector<std::uint64_t> possible = shard.asked;
      possible.push_back(shard.sure);
      possible.insert(possible.end(), shard.doubtful.begin(), shard.doubtful.end());
      std::optional<std::uint64_t> is;
      for (const std::uint64_t version : possible)
        if (version == 0 ? !found : found == content(n, version)) is = version;
      const bool listed = told.contains(shard_name(n));
      if (!is || listed != found.has_value()) {
        ++wrong;
        words += " shard " + std::to_string(n) + (found ? " has wrong content" : " is missing") +
                 " (listed " + std::to_string(listed) + ", sure of version " + std::to_string(shard.sure) +
                 ")";
      }
      shard = {is.value_or(0), {}, {}};
    }
    return wrong;
  }

 private:
  struct Shard {
    std::uint64_t sure = 0;
    std::vector<std::uint64_t> asked;     // and not confirmed
    std::vector<std::uint64_t> doubtful;  // failed
  };
  std::map<std::uint64_t, Shard> shards_;
};

}  // namespace trimtab::kv_target::file::testing
