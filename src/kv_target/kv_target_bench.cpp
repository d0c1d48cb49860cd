#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <poll.h>

#include <chrono>
#include <cstring>

#include "base/prng.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file_target.h"
#include "kv_target/memory_target.h"

/// Batches of 512 shards of 12 KB (one tenth of a V4.1 block), 6 MB, by the clock. Beside each: the same
/// bytes by memcpy (through 64 MB, beyond the caches), and the same ranges of the same files by plain pread,
/// one after the other. TRIMTAB_BENCH_DIRECTORY chooses the disk.
namespace trimtab::kv_target {
namespace {

constexpr std::size_t kShards = 512, kShardBytes = 12'000, kBatches = 10;

ShardName shard_name(std::uint64_t n) {
  return {{n * 0x9e3779b97f4a7c15ULL, n}, static_cast<std::uint8_t>(n % 12)};
}

void wait_for(Target& target, std::size_t count) {
  std::vector<Completion> done;
  while (done.size() < count) {
    if (target.poll(done) > 0 || target.wake_fd() < 0) continue;
    pollfd wait{target.wake_fd(), POLLIN, 0};
    ::poll(&wait, 1, 1'000);
  }
  for (const Completion& one : done) {
    if (one.outcome != Outcome::kDone) std::abort();
  }
}

struct Memory {
  std::vector<std::byte> bytes;
  explicit Memory(std::size_t size) : bytes(size) {
    base::Prng prng(1);
    for (std::size_t i = 0; i + 8 <= size; i += 8) {
      const std::uint64_t word = prng.next();
      std::memcpy(&bytes[i], &word, 8);
    }
  }
  std::span<std::byte> shard(std::size_t n) { return std::span(bytes).subspan(n * kShardBytes, kShardBytes); }
};

std::vector<Request> requests(Verb verb, Memory& memory, std::size_t batch) {
  std::vector<Request> all(kShards);
  for (std::size_t i = 0; i < kShards; ++i) {
    all[i].verb = verb;
    all[i].name = shard_name(batch * kShards + i);
    all[i].buffer = memory.shard(i);
    all[i].content = memory.shard(i);
    all[i].tag = i;
  }
  return all;
}

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Seconds that 6 MB take by memcpy, through two rings of 64 MB.
double memcpy_seconds() {
  static const double measured = [] {
    std::vector<std::byte> from(64U << 20, std::byte{1}), to(64U << 20, std::byte{2});
    const std::size_t bytes = kShards * kShardBytes, rounds = from.size() / bytes;
    double best = 1;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < rounds; ++i) std::memcpy(&to[i * bytes], &from[i * bytes], bytes);
      benchmark::DoNotOptimize(to.data());
      best = std::min(best, seconds(std::chrono::steady_clock::now() - begin) / static_cast<double>(rounds));
    }
    return best;
  }();
  return measured;
}

struct Setup {
  std::unique_ptr<file::testing::TempDirectory> directory;
  std::unique_ptr<Target> target;
  FileTarget* files = nullptr;
};
enum Kind : int { kMemory, kUringBuffered, kThreadsBuffered, kUringDirect, kThreadsDirect };

Setup make(int kind) {
  Setup made;
  if (kind == kMemory) {
    made.target = std::make_unique<MemoryTarget>(MemoryTarget::Options{1ULL << 30, 1ULL << 20, 1});
    return made;
  }
  const char* parent = std::getenv("TRIMTAB_BENCH_DIRECTORY");
  made.directory = parent == nullptr ? std::make_unique<file::testing::TempDirectory>()
                                     : std::make_unique<file::testing::TempDirectory>(parent);
  FileTarget::Options options;
  options.directory = made.directory->path();
  options.capacity_bytes = 256ULL << 20;
  options.uring = kind == kUringBuffered || kind == kUringDirect;
  options.direct = kind == kUringDirect || kind == kThreadsDirect;
  auto target = FileTarget::open(options);
  if (!target) std::abort();
  made.files = target->get();
  made.target = std::move(*target);
  return made;
}

void report(benchmark::State& state, double total_seconds) {
  const double each = total_seconds / static_cast<double>(state.iterations());
  state.counters["x_memcpy"] = each / memcpy_seconds();
  state.counters["MB_per_s"] = kShards * kShardBytes / each / 1e6;
}

void read_batch(benchmark::State& state) {
  Setup setup = make(static_cast<int>(state.range(0)));
  Memory memory(kShards * kShardBytes);
  for (std::size_t batch = 0; batch < kBatches; ++batch) {
    setup.target->submit(requests(Verb::kWrite, memory, batch));
    wait_for(*setup.target, kShards);
  }
  double total = 0;
  std::size_t batch = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto asked = requests(Verb::kRead, memory, batch++ % kBatches);
    const auto begin = std::chrono::steady_clock::now();
    setup.target->submit(asked);
    wait_for(*setup.target, kShards);
    const double took = seconds(std::chrono::steady_clock::now() - begin);
    state.SetIterationTime(took);
    total += took;
  }
  report(state, total);
  if (setup.files != nullptr)
    state.SetLabel(setup.files->describe().substr(setup.directory->path().size() + 2));
}
BENCHMARK(read_batch)->DenseRange(kMemory, kThreadsDirect)->UseManualTime()->Unit(benchmark::kMillisecond);

/// The same ranges of an extent file by pread, one after the other. 0: through the page cache; 1: O_DIRECT.
void pread_batch(benchmark::State& state) {
  const bool direct = state.range(0) == 1;
  Setup setup = make(direct ? kUringDirect : kUringBuffered);
  Memory memory(kShards * kShardBytes);
  for (std::size_t batch = 0; batch < kBatches; ++batch) {
    setup.target->submit(requests(Verb::kWrite, memory, batch));
    wait_for(*setup.target, kShards);
  }
  const std::string name = setup.directory->path("extents.000000");
  const file::Descriptor extents(::open(name.c_str(), O_RDONLY | (direct ? O_DIRECT : 0)));
  const std::size_t stride = 12'288, length = direct ? stride : kShardBytes;
  file::Staging aligned(4 * stride);
  double total = 0;
  std::size_t batch = 0;
  for ([[maybe_unused]] auto _ : state) {
    const std::size_t first = batch++ % kBatches * kShards;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kShards; ++i) {
      std::byte* to = direct ? aligned.region().data() : memory.shard(i).data();
      const auto at = static_cast<off_t>((first + i) * stride);
      if (pread(extents.get(), to, length, at) != static_cast<ssize_t>(length)) std::abort();
    }
    const double took = seconds(std::chrono::steady_clock::now() - begin);
    state.SetIterationTime(took);
    total += took;
  }
  report(state, total);
}
BENCHMARK(pread_batch)->Arg(0)->Arg(1)->UseManualTime()->Unit(benchmark::kMillisecond);

/// So many at once; durable when it ends, whatever the kind but memory.
void write_batch(benchmark::State& state) {
  Setup setup = make(static_cast<int>(state.range(0)));
  const auto at_once = static_cast<std::size_t>(state.range(1));
  Memory memory(kShards * kShardBytes);
  double total = 0;
  std::size_t batch = 0;
  for ([[maybe_unused]] auto _ : state) {
    auto asked = requests(Verb::kWrite, memory, batch++ % kBatches);
    asked.resize(at_once);
    const auto begin = std::chrono::steady_clock::now();
    setup.target->submit(asked);
    wait_for(*setup.target, at_once);
    const double took = seconds(std::chrono::steady_clock::now() - begin);
    state.SetIterationTime(took);
    total += took;
  }
  if (at_once == kShards) report(state, total);
  const Space space = *setup.target->space();
  state.counters["amplification"] =
      static_cast<double>(space.device_bytes_written) / static_cast<double>(space.caller_bytes_written);
  if (setup.files == nullptr) return;
  const auto counters = setup.files->counters();
  state.counters["syncs_per_batch"] =
      static_cast<double>(counters.syncs) / static_cast<double>(std::max<std::uint64_t>(1, counters.commits));
}
BENCHMARK(write_batch)
    ->ArgsProduct({{kMemory, kUringBuffered, kThreadsBuffered, kUringDirect, kThreadsDirect}, {1, kShards}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::kv_target
