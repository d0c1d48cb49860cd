#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/prng.h"
#include "policy/prefill/queues.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::EngineId;
using model::RequestId;
using model::TierId;

/// The rules of PrefillQueues said plainly: vectors, scans, no heaps and no memory of what failed before.
struct Plain {
  struct Engine {
    TierRange range;
    std::vector<RankOffer> ranks;
  };
  QueueConfig config;
  TierMap map;
  const QueueOrder* order;
  std::map<RequestId, QueueItem> queued;
  std::map<RequestId, std::tuple<QueueItem, EngineId, Nanos>> leased;  // and when it ends
  std::map<EngineId, Engine> engines;

  TierId tier(const QueueItem& item) const { return map.tier_of(item.context); }
  Nanos key(const QueueItem& item) const { return order->key(item, config.order_config); }
  static Nanos left(const Engine& engine) {
    Nanos sum{0};
    for (const auto& rank : engine.ranks) sum += std::max(rank.quota_left, Nanos{0});
    return sum;
  }
  /// Least by (key, id) among the queued of one tier.
  const QueueItem* head(std::uint32_t t) const {
    const QueueItem* least = nullptr;
    for (const auto& [id, item] : queued) {
      if (tier(item) == TierId{t} && (least == nullptr || key(item) < key(*least))) least = &item;
    }
    return least;
  }
  std::vector<const QueueItem*> heads(std::uint32_t from, std::uint32_t to) const {
    std::vector<const QueueItem*> result;
    for (std::uint32_t t = from; t <= to && t < map.size(); ++t) {
      if (const auto* item = head(t)) result.push_back(item);
    }
    std::sort(result.begin(), result.end(), [this](const auto* a, const auto* b) {
      return std::pair(key(*a), a->id) < std::pair(key(*b), b->id);
    });
    return result;
  }

  struct Answer {
    RequestId id;
    EngineId engine;
    std::uint32_t rank;
  };
  std::optional<Answer> serve(Nanos now) {
    std::vector<std::pair<Nanos, EngineId>> by_left;
    for (const auto& [id, engine] : engines) {
      if (left(engine) > Nanos{0}) by_left.emplace_back(-left(engine), id);
    }
    std::sort(by_left.begin(), by_left.end());
    const QueueItem* oldest = nullptr;
    for (const auto& [id, item] : queued) {
      if (oldest == nullptr || item.arrival < oldest->arrival) oldest = &item;
    }
    const bool aged = oldest != nullptr && oldest->arrival + config.aging <= now;
    const auto try_all = [&](const Engine& engine, EngineId id, const std::vector<const QueueItem*>& items) {
      for (const auto* item : items) {
        if (const auto rank = least_loaded_rank(engine.ranks, item->blocks)) {
          return std::optional(Answer{item->id, id, rank->rank});
        }
      }
      return std::optional<Answer>();
    };
    for (const auto& [minus_left, id] : by_left) {
      const Engine& engine = engines.at(id);
      if (aged) {
        if (const auto answer = try_all(engine, id, {oldest})) return answer;
        if (engine.range.contains(tier(*oldest))) continue;
      }
      if (const auto answer = try_all(engine, id, heads(engine.range.first.value, engine.range.last.value)))
        return answer;
    }
    if (aged) return std::nullopt;
    for (const auto& [minus_left, id] : by_left) {
      const Engine& engine = engines.at(id);
      if (!heads(engine.range.first.value, engine.range.last.value).empty()) continue;
      const double capacity = static_cast<double>(engine.ranks.size()) *
                              static_cast<double>(config.outstanding_steps) *
                              static_cast<double>(config.step_budget.value);
      if (static_cast<double>(left(engine).value) <= (1 - config.help_below_ratio) * capacity) continue;
      const std::uint32_t from = engine.range.first.value == 0 ? 0 : engine.range.first.value - 1;
      if (const auto answer = try_all(engine, id, heads(from, engine.range.last.value + 1))) return answer;
    }
    return std::nullopt;
  }
  void apply(const Answer& answer, Nanos now) {
    const QueueItem item = queued.at(answer.id);
    auto& rank = engines.at(answer.engine).ranks[answer.rank];
    rank.quota_left -= item.quota;
    rank.blocks_free -= item.blocks;
    leased[item.id] = {item, answer.engine, now + config.lease};
    queued.erase(item.id);
  }
  void return_all(bool (*which)(Nanos ends, EngineId engine, Nanos now, EngineId lost), Nanos now,
                  EngineId lost) {
    std::erase_if(leased, [&](const auto& each) {
      const auto& [item, engine, ends] = each.second;
      if (!which(ends, engine, now, lost)) return false;
      queued[item.id] = item;
      return true;
    });
  }
};

constexpr std::uint32_t kEngines = 5;

struct World {
  PrefillQueues real;
  Plain plain;
  base::Prng prng;
  Nanos now{0};
  std::uint64_t next_id = 0;

  QueueItem random_item() {
    QueueItem item;
    item.id = RequestId{next_id++};
    item.context = TokenCount{static_cast<std::int64_t>(1 + prng.below(40))};
    item.quota = Nanos{static_cast<std::int64_t>(prng.below(40))};
    item.blocks = static_cast<std::int64_t>(prng.below(8));
    item.arrival = now - Nanos{static_cast<std::int64_t>(prng.below(5))};
    if (prng.below(3) == 0) item.deadline = now + Nanos{static_cast<std::int64_t>(prng.below(100))};
    return item;
  }
  void ranges() {
    std::vector<EngineTiers> engines;
    std::map<EngineId, Plain::Engine> kept;
    for (std::uint32_t id = 0; id < kEngines; ++id) {
      if (prng.below(6) == 0) continue;
      const auto first = static_cast<std::uint32_t>(prng.below(4));
      const auto last = first + static_cast<std::uint32_t>(prng.below(4 - first));
      engines.push_back({EngineId{id}, {TierId{first}, TierId{last}, TierId{last}}});
      kept[EngineId{id}] = {engines.back().range, {}};
      if (plain.engines.contains(EngineId{id})) kept[EngineId{id}].ranks = plain.engines[EngineId{id}].ranks;
    }
    real.set_engines(engines);
    plain.engines = kept;
  }
  void pull() {
    const EngineId id{static_cast<std::uint32_t>(prng.below(kEngines))};
    std::vector<RankOffer> ranks(2);
    for (auto& rank : ranks) {
      rank.quota_left = Nanos{static_cast<std::int64_t>(prng.below(120)) - 20};
      rank.blocks_free = static_cast<std::int64_t>(prng.below(12));
    }
    real.pull(id, ranks);
    if (plain.engines.contains(id)) plain.engines[id].ranks = ranks;
  }
  void some_remove() {
    if (next_id == 0) return;
    const RequestId id{prng.below(next_id)};
    const bool there = plain.queued.erase(id) + plain.leased.erase(id) > 0;
    RC_ASSERT(real.remove(id) == there);
  }
  void some_update() {
    if (plain.queued.empty()) return;
    auto at = plain.queued.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng.below(plain.queued.size())));
    at->second.context += TokenCount{15};
    at->second.quota += Nanos{3};
    RC_ASSERT(real.update(at->second));
  }
  void step() {
    now += Nanos{static_cast<std::int64_t>(prng.below(8))};
    const auto dice = prng.below(20);
    if (dice < 9) {
      const auto item = random_item();
      real.enqueue(item);
      plain.queued[item.id] = item;
    } else if (dice < 14) {
      pull();
    } else if (dice == 14) {
      some_remove();
    } else if (dice == 15) {
      some_update();
    } else if (dice == 16) {
      ranges();
    } else if (dice == 17) {
      real.expire(now);
      plain.return_all([](Nanos ends, EngineId, Nanos t, EngineId) { return ends <= t; }, now, EngineId{0});
    } else if (dice == 18) {
      const EngineId lost{static_cast<std::uint32_t>(prng.below(kEngines))};
      real.lose_engine(lost);
      if (plain.engines.contains(lost)) plain.engines[lost].ranks.clear();
      plain.return_all([](Nanos, EngineId engine, Nanos, EngineId gone) { return engine == gone; }, now,
                       lost);
    }
    for (;;) {
      const auto expected = plain.serve(now);
      const auto grant = real.serve(now);
      RC_ASSERT(grant.has_value() == expected.has_value());
      if (!grant) break;
      RC_ASSERT(grant->item.id == expected->id);
      RC_ASSERT(grant->engine == expected->engine);
      RC_ASSERT(grant->rank == expected->rank);
      plain.apply(*expected, now);
    }
    RC_ASSERT(real.queued() == plain.queued.size());
    RC_ASSERT(real.leased() == plain.leased.size());
    Nanos quota{0};
    for (const auto& [id, item] : plain.queued) quota += item.quota;
    RC_ASSERT(real.queued_quota() == quota);
  }
};

World world(const std::string& order, double help, std::uint64_t seed) {
  QueueConfig config;
  config.tier_bounds_tokens = {10, 20, 30};
  config.step_budget = Nanos{50};
  config.order = order;
  config.order_config.tier_targets = {Nanos{20}, Nanos{40}};
  config.aging = Nanos{150};
  config.lease = Nanos{60};
  config.help_below_ratio = help;
  auto made = PrefillQueues::make(config);
  Plain plain{config, *TierMap::make(config.tier_bounds_tokens), *find_queue_order(order), {}, {}, {}};
  World result{std::move(*made), std::move(plain), base::Prng(seed), {}, 0};
  result.ranges();
  return result;
}

RC_GTEST_PROP(PrefillQueues, DecidesAsThePlainRulesSay, ()) {
  const auto order = *rc::gen::element<std::string>("fifo", "edf", "arrival_plus_work");
  const auto help = *rc::gen::element(0.0, 0.5, 0.9);
  auto both = world(order, help, *rc::gen::arbitrary<std::uint64_t>());
  for (int i = 0; i < 250; ++i) both.step();
}

TEST(PrefillQueues, TheSameEventsGiveTheSameGrants) {
  const auto run = [](std::uint64_t seed) {
    auto both = world("edf", 0.5, seed);
    std::vector<std::uint64_t> grants;
    for (int i = 0; i < 2000; ++i) {
      both.now += Nanos{3};
      both.real.enqueue(both.random_item());
      std::vector<RankOffer> ranks(2, RankOffer{Nanos{static_cast<std::int64_t>(both.prng.below(40))}, 10});
      both.real.pull(EngineId{static_cast<std::uint32_t>(both.prng.below(kEngines))}, ranks);
      while (const auto grant = both.real.serve(both.now)) {
        grants.push_back(grant->item.id.value * 64 + grant->engine.value * 8 + grant->rank);
      }
    }
    return grants;
  };
  EXPECT_EQ(run(4), run(4));
  EXPECT_GT(run(4).size(), 500U);
  EXPECT_NE(run(4), run(5));
}

}  // namespace
}  // namespace trimtab::policy
