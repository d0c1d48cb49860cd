#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/pool_repair.h"
#include "apps/pool_repair_fleet.h"
#include "base/hash.h"
#include "base/prng.h"

namespace trimtab::apps {
namespace {

/// Nobody waits for these blocks, and a busy disk makes a write durable only after seconds.
constexpr base::Nanos kPatience{5'000'000'000};

struct ExerciseOptions {
  FleetOptions fleet;
  std::uint64_t blocks = 200, reads = 0, seed = 1;
  std::uint32_t at_once = 16;
  bool keep = false, only_read = false, only_erase = false;
};

/// Known blocks, so that every byte that is read can be compared.
class Exercise {
 public:
  Exercise(const ExerciseOptions& options, Fleet& fleet) : options_(options), fleet_(fleet) {}

  /// Why, as far as a target says so.
  std::string trouble() {
    for (kv_store::TargetId id = 0; id < fleet_.store->channels().count(); ++id)
      if (const std::string why = fleet_.store->trouble(id); !why.empty())
        return fmt::format("; {}: {}", id < fleet_.names.size() ? fleet_.names[id] : "?", why);
    return fleet_.store->counters().writes_full > 0 ? ": the targets are full" : ": see `pool status`";
  }
  base::Status write_all() {
    const base::Nanos begun = fleet_.now();
    run(options_.blocks, [this](std::uint64_t i, Asked& asked) {
      asked.bytes = content(i);
      return fleet_.store->write(key(i), asked.bytes, base::kForever, fleet_.now());
    });
    write_s_ = base::to_seconds(fleet_.now() - begun);
    write_us_ = std::move(micros_);
    if (failed_ == 0) return {};
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("{} of {} blocks could not be written{}", failed_, options_.blocks, trouble()), "pool");
  }

  void read_all() {
    const std::uint64_t reads = options_.reads > 0 ? options_.reads : options_.blocks;
    base::Prng prng(options_.seed, 11);
    const base::Nanos begun = fleet_.now();
    run(reads, [&](std::uint64_t i, Asked& asked) {
      asked.block = reads == options_.blocks ? i : prng.below(options_.blocks);
      asked.read = true;
      asked.bytes.resize(fleet_.layout.block_bytes);
      const kv_store::StripedStore::BlockRead one{key(asked.block), asked.bytes};
      return fleet_.store->read({&one, 1}, base::kForever, 0, fleet_.now());
    });
    read_s_ = base::to_seconds(fleet_.now() - begun);
    read_us_ = std::move(micros_);
  }

  void erase_all() {
    // Again for what a target told of only afterwards: shards whose writes were late.
    for (int round = 0; round < 20; ++round) {
      std::vector<kv_store::BlockKey> keys;
      for (std::uint64_t i = 0; i < options_.blocks; ++i)
        if (fleet_.store->index().find(key(i))) keys.push_back(key(i));
      if (keys.empty() && round > 1) return;
      fleet_.store->erase(keys, fleet_.now());
      fleet_.turn_for(base::Nanos{250'000'000});
    }
  }

  int report() {
    const auto at = [](std::vector<double>& micros, double quantile) {
      if (micros.empty()) return 0.0;
      std::ranges::sort(micros);
      return micros[static_cast<std::size_t>(quantile * static_cast<double>(micros.size() - 1))];
    };
    const auto rate = [this](std::size_t blocks, double seconds) {
      return seconds > 0 ? static_cast<double>(blocks * fleet_.layout.block_bytes) / 1e6 / seconds : 0.0;
    };
    const kv_store::StoreCounters& counters = fleet_.store->counters();
    const nlohmann::json out{{"blocks", options_.blocks},
                             {"block_bytes", fleet_.layout.block_bytes},
                             {"written", write_us_.size()},
                             {"write_mb_per_s", rate(write_us_.size(), write_s_)},
                             {"write_p50_us", at(write_us_, 0.5)},
                             {"write_p99_us", at(write_us_, 0.99)},
                             {"read", read_us_.size()},
                             {"read_mb_per_s", rate(read_us_.size(), read_s_)},
                             {"read_p50_us", at(read_us_, 0.5)},
                             {"read_p99_us", at(read_us_, 0.99)},
                             {"missing", missing_},
                             {"wrong", wrong_},
                             {"degraded", counters.reads_degraded},
                             {"hedges", counters.hedges},
                             {"stale", counters.stale}};
    if (options_.fleet.as_json) {
      std::cout << out.dump(2) << "\n";
    } else {
      for (const auto& [name, value] : out.items())
        std::cout << fmt::format(
            "{:16} {}\n", name,
            value.is_number_float() ? fmt::format("{:.1f}", value.get<double>()) : value.dump());
    }
    return missing_ + wrong_ > 0 ? 3 : 0;
  }

 private:
  struct Asked {
    std::uint64_t block = 0;
    bool read = false;
    base::Nanos since{0};
    std::vector<std::byte> bytes;
  };

  kv_store::BlockKey key(std::uint64_t i) const {
    return {base::mix(options_.seed ^ 0x7472696d746162ULL, i), base::mix(options_.seed + 0x65786572ULL, i)};
  }
  std::vector<std::byte> content(std::uint64_t i) const {
    base::Prng prng(options_.seed, i);
    std::vector<std::byte> block(fleet_.layout.block_bytes);
    for (std::size_t at = 0; at < block.size(); at += 8) {
      const std::uint64_t word = prng.next();
      std::memcpy(block.data() + at, &word, std::min<std::size_t>(8, block.size() - at));
    }
    return block;
  }

  template <class Ask>
  void run(std::uint64_t count, Ask ask) {
    std::uint64_t asked = 0;
    for (std::map<kv_store::StripedStore::Handle, Asked> out; asked < count || !out.empty();) {
      for (; asked < count && out.size() < options_.at_once; ++asked) {
        Asked one;
        one.block = asked;
        one.since = fleet_.now();
        const auto handle = ask(asked, one);
        out.emplace(handle, std::move(one));
      }
      fleet_.turn();
      for (const kv_store::StoreEvent& event : fleet_.events) {
        const auto found = out.find(event.handle);
        if (!event.last || found == out.end()) continue;
        micros_.push_back(static_cast<double>((fleet_.now() - found->second.since).value) / 1e3);
        judge(event, found->second);
        out.erase(found);
      }
      fleet_.events.clear();
    }
  }

  void judge(const kv_store::StoreEvent& event, const Asked& asked) {
    using Kind = kv_store::StoreEvent::Kind;
    if (!asked.read) {
      failed_ += event.kind == Kind::kWritten ? 0 : 1;
    } else if (event.kind != Kind::kRead) {
      ++missing_;
    } else if (asked.bytes != content(asked.block)) {
      ++wrong_;
    }
  }

  const ExerciseOptions& options_;
  Fleet& fleet_;
  std::vector<double> micros_, write_us_, read_us_;
  double write_s_ = 0, read_s_ = 0;
  std::uint64_t failed_ = 0, missing_ = 0, wrong_ = 0;
};

base::Result<int> exercise(const ExerciseOptions& options) {
  FleetOptions places = options.fleet;
  places.makes_places = !options.only_read && !options.only_erase;
  places.request_timeout = kPatience;
  auto fleet = open_fleet(places, kv_store::MapUse::kLook);
  if (!fleet) return tl::unexpected(fleet.error());
  Exercise work(options, *fleet);
  if (!options.only_read && !options.only_erase) TRIMTAB_TRY(work.write_all());
  if (!options.only_erase) work.read_all();
  if (options.only_erase || !(options.keep || options.only_read)) work.erase_all();
  return work.report();
}

}  // namespace

void add_pool_exercise(CLI::App& pool) {
  auto options = std::make_shared<ExerciseOptions>();
  CLI::App* command = pool.add_subcommand(
      "exercise",
      "writes blocks of known content, reads them back and compares every byte; erases them\n\n"
      "  trimtab pool exercise --profile deepseek-v4.1-flash --targets tcp://10.0.0.1:7701 ... --blocks "
      "2000\n"
      "  trimtab pool exercise ... --keep; kill a target; trimtab pool exercise ... --only-read\n\n"
      "For a new fleet before it serves, and to see what losing targets costs. Their keys are no block's of "
      "any\n"
      "model. It tells of its reads how many were degraded (a data shard was late or gone, and was computed "
      "from\n"
      "the others), hedged (one shard more was asked for) and stale (the index promised a block that was "
      "gone);\n"
      "of an idle pool that is whole a few may be degraded. Exit code: 0, or 3 when a block was missing or "
      "wrong.");
  add_fleet_options(*command, options->fleet);
  command->add_option("--blocks", options->blocks, "how many")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command->add_option("--reads", options->reads, "so many at random; 0: each block once");
  command->add_option("--at-once", options->at_once, "under way at a time")
      ->check(CLI::Range(1, 4'096))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "other blocks")->capture_default_str();
  CLI::Option* keep = command->add_flag("--keep", options->keep, "do not erase them");
  CLI::Option* only = command->add_flag("--only-read", options->only_read, "those that were kept before");
  command->add_flag("--only-erase", options->only_erase, "those that were kept before")
      ->excludes(keep)
      ->excludes(only);
  command->callback([options] {
    const auto code = exercise(*options);
    finish(code ? base::Status{} : base::Status(tl::unexpected(code.error())));
    if (*code != 0) throw CLI::RuntimeError(*code);
  });
}

}  // namespace trimtab::apps
