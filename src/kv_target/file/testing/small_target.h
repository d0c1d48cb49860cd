#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv_target/file_target.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::file::testing {

using kv_target::testing::content_of;
using kv_target::testing::Driver;
using kv_target::testing::shard_name;

/// Four files of 1 MiB, so that a test fills several, and shards of 12,000 bytes (three units).
inline FileTarget::Options plain(const std::string& directory) {
  FileTarget::Options options;
  options.directory = directory;
  options.capacity_bytes = 4U << 20;
  options.shard_bytes = 1U << 20;
  options.layout.file_bytes = 1U << 20;
  options.staging_bytes = 1U << 18;
  return options;
}

inline std::unique_ptr<FileTarget> open(const FileTarget::Options& options) {
  auto target = FileTarget::open(options);
  EXPECT_TRUE(target) << (target ? "" : base::to_string(target.error()));
  return target ? std::move(*target) : nullptr;
}

inline std::vector<std::byte> content(std::uint64_t n, std::uint64_t version = 0) {
  return content_of(shard_name(n), 12'000, version);
}

inline Outcome write(Target& target, std::uint64_t n, std::uint64_t version = 0) {
  return Driver(target).write(shard_name(n), content(n, version));
}

inline std::optional<std::vector<std::byte>> read(Target& target, std::uint64_t n) {
  return Driver(target).content(shard_name(n));
}

}  // namespace trimtab::kv_target::file::testing
