// 512 blocks in one batch from twelve directories, beside pread of the same bytes from one file, block after
// block, both with O_DIRECT or both through the page cache. By the clock: most of it is waiting.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "kv_store/striped_store.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_store {
namespace {

constexpr std::uint32_t kBatch = 512, kDirectories = 12;
constexpr std::size_t kBlockBytes = 114'048, kStride = 114'688;  // whole pages

base::Nanos clock_now() {
  return base::Nanos{std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

struct Aligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class Directories {
 public:
  explicit Directories(bool direct) : memory_(new_pages(kBatch * kStride)) {
    std::string name = (std::filesystem::temp_directory_path() / "kv_store_bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return;
    root_ = name;
    StoreOptions options;
    model::KvLayout kv;
    kv.block_bytes = base::Bytes{kBlockBytes};
    for (const std::int64_t bytes : {22'784, 22'784, 22'784, 45'568})
      kv.layer_bytes.push_back(base::Bytes{bytes});
    options.layout = *kv_code::StripeLayout::make(kv);
    // A disk that is busy with other things is no dead target.
    options.targets.request_timeout = options.write_timeout = options.read_timeout =
        base::Nanos{60'000'000'000};
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (std::uint32_t t = 0; t < kDirectories; ++t) {
      kv_target::FileTarget::Options one;
      one.directory = root_ / std::to_string(t);
      one.capacity_bytes = one.layout.file_bytes = 64ULL << 20;
      one.direct = direct;
      auto opened = kv_target::FileTarget::open(std::move(one));
      if (!opened) return;
      targets.push_back(std::move(*opened));
    }
    store_ = std::move(*StripedStore::open(std::move(targets), options, clock_now()));
    base::Prng prng(1);
    for (std::size_t i = 0; i < kBatch * kStride; i += 8) {
      const std::uint64_t word = prng.next();
      std::memcpy(memory_.get() + i, &word, 8);
    }
    source_.assign(memory_.get(), memory_.get() + kBatch * kStride);
    for (std::uint32_t b = 0; b < kBatch; ++b) {
      const BlockKey key{base::mix(21, b), base::mix(22, b)};
      const std::size_t at = b * kStride;
      reads_.push_back({key, std::span(memory_.get() + at, kBlockBytes)});
      store_->write(key, std::span(source_).subspan(at, kBlockBytes), base::kForever, clock_now());
    }
    ok_ = wait(kBatch) && write_plain(direct);
    base::Prng(7).shuffle(std::span(reads_));
  }
  ~Directories() {
    store_.reset();
    if (plain_ >= 0) ::close(plain_);
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }
  Directories(const Directories&) = delete;
  Directories& operator=(const Directories&) = delete;

  bool ok() const { return ok_; }
  bool get_all() {
    store_->read(reads_, base::kForever, 0, clock_now());
    return wait(kBatch);
  }
  bool pread_all() {
    for (std::uint32_t b = 0; b < kBatch; ++b) {
      const std::size_t at = (b * 37 % kBatch) * kStride;
      if (::pread(plain_, memory_.get() + at, kStride, static_cast<off_t>(at)) != ssize_t{kStride})
        return false;
    }
    return true;
  }
  /// Whether the destinations hold what was written.
  bool right() const {
    for (std::size_t at = 0; at < kBatch * kStride; at += kStride)
      if (std::memcmp(memory_.get() + at, source_.data() + at, kBlockBytes) != 0) return false;
    return true;
  }
  void wipe() { std::memset(memory_.get(), 0, kBatch * kStride); }

 private:
  static std::unique_ptr<std::byte[], Aligned> new_pages(std::size_t bytes) {
    return std::unique_ptr<std::byte[], Aligned>(static_cast<std::byte*>(std::aligned_alloc(4'096, bytes)));
  }
  bool write_plain(bool direct) {
    plain_ = ::open((root_ / "plain").c_str(), O_RDWR | O_CREAT | (direct ? O_DIRECT : 0), 0600);
    return plain_ >= 0 && ::pwrite(plain_, memory_.get(), kBatch * kStride, 0) == ssize_t{kBatch * kStride} &&
           ::fsync(plain_) == 0;
  }
  bool wait(std::uint32_t count) {
    events_.clear();
    for (;;) {
      store_->poll(clock_now(), events_);
      if (events_.size() >= count) break;
      std::vector<pollfd> fds;
      for (const int fd : store_->wake_fds()) fds.push_back({fd, POLLIN, 0});
      ::poll(fds.data(), fds.size(), 1);
    }
    return std::ranges::all_of(events_, [](const StoreEvent& event) {
      return event.kind == StoreEvent::Kind::kRead || event.kind == StoreEvent::Kind::kWritten;
    });
  }

  std::unique_ptr<std::byte[], Aligned> memory_;
  std::vector<std::byte> source_;
  std::filesystem::path root_;
  std::unique_ptr<StripedStore> store_;
  std::vector<StripedStore::BlockRead> reads_;
  std::vector<StoreEvent> events_;
  int plain_ = -1;
  bool ok_ = false;
};

/// Pairs of a get and the preads, one right after the other; medians of them and of their ratio.
void get_512_from_directories(benchmark::State& state, bool direct) {
  Directories setup(direct);
  if (!setup.ok())
    return state.SkipWithError("no twelve directories, or no O_DIRECT, where temporary files go");
  std::vector<double> ratios, gets, preads;
  for (auto _ : state) {
    setup.wipe();
    const base::Nanos begun = clock_now();
    const bool got = setup.get_all();
    const base::Nanos between = clock_now();
    if (!got || !setup.right()) return state.SkipWithError("wrong or missing bytes");
    const base::Nanos again = clock_now();
    if (!setup.pread_all()) return state.SkipWithError("pread failed");
    gets.push_back(static_cast<double>((between - begun).value));
    preads.push_back(static_cast<double>((clock_now() - again).value));
    ratios.push_back(gets.back() / preads.back());
  }
  for (auto* values : {&ratios, &gets, &preads}) std::ranges::sort(*values);
  state.counters["over_pread"] = ratios[ratios.size() / 2];
  state.counters["get_ms"] = gets[gets.size() / 2] / 1e6;
  state.counters["pread_ms"] = preads[preads.size() / 2] / 1e6;
}
BENCHMARK_CAPTURE(get_512_from_directories, direct, true)->Iterations(9)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(get_512_from_directories, page_cache, false)->Iterations(9)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::kv_store
