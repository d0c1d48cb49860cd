#include "kv_target/file_target.h"

#include <gtest/gtest.h>

#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::testing {
namespace {

using file::testing::TempDirectory;

/// A target of files in a directory of its own, which lives as long as the target's `Maker`.
Maker maker(const std::string& name, FileTarget::Options options) {
  const auto directories = std::make_shared<std::vector<std::unique_ptr<TempDirectory>>>();
  const auto used = std::make_shared<FileTarget::Options>(options);
  const auto open = [used] {
    auto target = FileTarget::open(*used);
    EXPECT_TRUE(target) << (target ? "" : base::to_string(target.error()));
    return target ? std::unique_ptr<Target>(std::move(*target)) : nullptr;
  };
  return {name,
          [=](std::uint64_t capacity_bytes) {
            // Where O_DIRECT is to be tried, on a disk; otherwise where syncs cost nothing.
            directories->push_back(options.direct ? std::make_unique<TempDirectory>()
                                                  : std::make_unique<TempDirectory>(TempDirectory::memory()));
            used->directory = directories->back()->path();
            used->capacity_bytes = capacity_bytes;
            return open();
          },
          [=](std::unique_ptr<Target> target) {
            target.reset();
            return open();
          }};
}

FileTarget::Options options(bool uring, bool direct, bool registered = true,
                            std::uint32_t unit_bytes = 4096) {
  FileTarget::Options options;
  options.uring = uring;
  options.direct = direct;
  options.registered = registered;
  options.shard_bytes = 1U << 20;
  options.layout = {unit_bytes, 4U << 20};
  options.staging_bytes = 1U << 20;
  return options;
}

INSTANTIATE_TEST_SUITE_P(File, TargetConformance,
                         ::testing::Values(maker("uring_direct", options(true, true)),
                                           maker("uring_buffered", options(true, false)),
                                           maker("uring_not_registered", options(true, true, false)),
                                           maker("uring_sectors", options(true, true, true, 512)),
                                           maker("threads_direct", options(false, true)),
                                           maker("threads_buffered", options(false, false))),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace trimtab::kv_target::testing
