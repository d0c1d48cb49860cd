#include <filesystem>

#include "kv_remote/testing/usrbio_fake.h"
#include "kv_remote/usrbio/usrbio_engine.h"
#include "kv_target/testing/conformance.h"
#include "kv_target/testing/target_on.h"

namespace trimtab::kv_target::testing {

namespace {

namespace remote = kv_remote;

/// A directory that goes with the target.
struct Disk {
  std::shared_ptr<std::string> directory;
  std::uint64_t capacity_bytes = 0;
};

/// Its content by way of the fake 3FS.
struct On3fs final : TargetOn<Disk, FileTarget> {
  bool open() {
    FileTarget::Options options;
    options.directory = *ground.directory;
    options.capacity_bytes = ground.capacity_bytes;
    options.shard_bytes = 1U << 20;
    options.layout.file_bytes = 4U << 20;
    options.direct = false;  // what comes back short goes on at any byte
    remote::UsrbioOptions usrbio;
    usrbio.mount_point = *ground.directory;
    usrbio.slot_bytes = 64U << 10;
    usrbio.slots = 16;
    usrbio.entries = 12;
    auto opened = remote::open_on_3fs(std::move(options), usrbio, remote::usrbio::Fake::api());
    EXPECT_TRUE(opened.has_value()) << base::to_string(opened.error());
    target = std::move(*opened);
    return target != nullptr;
  }
};

Maker on_3fs(std::string name, int short_percent) {
  return {std::move(name),
          [short_percent](std::uint64_t bytes) -> std::unique_ptr<Target> {
            remote::usrbio::Fake::the().reset();
            remote::usrbio::Fake::the().short_percent = short_percent;
            char path[] = "/tmp/trimtab_3fs_XXXXXX";
            auto made = std::make_unique<On3fs>();
            made->ground.directory =
                std::shared_ptr<std::string>(new std::string(::mkdtemp(path)), [](std::string* p) {
                  std::error_code ignored;
                  std::filesystem::remove_all(*p, ignored);
                  delete p;
                });
            made->ground.capacity_bytes = bytes;
            return made->open() ? std::move(made) : nullptr;
          },
          [](std::unique_ptr<Target> old) -> std::unique_ptr<Target> {
            auto made = std::make_unique<On3fs>();
            made->ground = dynamic_cast<On3fs&>(*old).ground;
            old.reset();
            EXPECT_GT(remote::usrbio::Fake::the().requests, 0U) << "contents went that way";
            EXPECT_EQ(remote::usrbio::Fake::the().misuses, 0U);
            return made->open() ? std::move(made) : nullptr;
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Usrbio, TargetConformance,
                         ::testing::Values(on_3fs("whole", 0), on_3fs("short_answers", 30)),
                         [](const auto& made) { return made.param.name; });

}  // namespace trimtab::kv_target::testing
