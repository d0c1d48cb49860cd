// Every order in which one request's messages can cross, with one thing that goes wrong at every possible
// point.
#include <gtest/gtest.h>

#include <set>

#include "cluster/testing/interleaved.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Interleaved;
using Special = Interleaved::Special;

model::ClusterConfig one_of_each() {
  model::ClusterConfig config;
  config.prefill.engines = config.prefill.ranks = 1;
  config.decode.groups = config.decode.ranks = 1;
  config.vision.machines = config.vision.encoders = 1;
  config.prefill.lease_ms = 500;
  config.prefill.kv_blocks = config.decode.kv_blocks = 64;
  return config;
}

// Sanitizers cost a factor of ten; there the walk stops early, except for what is small anyway.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kStatesMax = 1'500;
#else
constexpr std::uint64_t kStatesMax = 50'000;
#endif

struct Count {
  std::uint64_t states = 0, paths = 0, finished = 0, failed = 0, cancelled = 0;
};

bool ends_well(const Interleaved& world, Count& count) {
  ++count.paths;
  count.finished += world.finished();
  count.failed += world.failed();
  count.cancelled += world.cancelled();
  const std::uint64_t left = world.cluster().census().total() + world.agents().accounts() + world.held();
  const bool ended = world.finished() + world.failed() + world.cancelled() == 1;
  const bool whole = !world.finished() || world.tokens() == world.wanted();
  if (left == 0 && ended && whole && world.violations().empty()) return true;
  std::string story;
  for (const std::string& line : world.story()) story += "  " + line + "\n";
  ADD_FAILURE() << "left " << left << ", ended " << ended << ", tokens " << world.tokens() << ", "
                << (world.violations().empty() ? "" : world.violations().front()) << "\n"
                << story;
  return false;
}

bool moves(Special special) {
  return special == Special::kMove || special == Special::kMoveAndBack || special == Special::kMoveCancel;
}

/// Depth first over all choices, by replay: the machine is cheap to build and needs no copying. Stops after
/// `states_max` different states; without moves, no case has as many as kStatesMax.
Count explore(Special special, bool with_image, bool short_work, std::uint64_t states_max) {
  auto config = one_of_each();
  if (moves(special)) config.decode.ranks = 2;
  if (!short_work) config.prefill.chunk_tokens_max = 60;  // the place is reserved late
  model::Profile profile;
  profile.cost = model::QuadraticCost{1'000'000, 1'000'000, 5'000};
  Count count;
  std::vector<std::size_t> path;
  std::set<std::uint64_t> seen;
  for (;;) {
    Interleaved world(config, profile, queue::EmbeddedQueue::make(config.prefill).value(), special,
                      with_image);
    std::vector<std::size_t> widths;
    bool known = false;
    for (auto choices = world.choices(); !choices.empty(); choices = world.choices()) {
      const std::size_t depth = widths.size();
      // Beyond the replayed part, a state that was followed before ends the walk.
      if (depth == path.size()) {
        if (!seen.insert(world.fingerprint()).second) {
          known = true;
          break;
        }
        path.push_back(0);
      }
      widths.push_back(choices.size());
      world.take(choices[path[depth]]);
    }
    if (!known && !ends_well(world, count)) return count;
    count.states = seen.size();
    if (count.states >= states_max) return count;
    while (!path.empty() && path.back() + 1 == widths[path.size() - 1]) path.pop_back();
    if (path.empty()) return count;
    ++path.back();
  }
}

struct Case {
  const char* name;
  Special special;
};

class Interleavings : public ::testing::TestWithParam<Case> {};

TEST_P(Interleavings, NothingIsLeftAndTheAnswerIsWhole) {
  for (const bool with_image : {false, true}) {
    for (const bool short_work : {true, false}) {
      const Special special = GetParam().special;
      // Two ranks have many more orders: the first of them are walked.
      const std::uint64_t states_max = moves(special) ? kStatesMax / 5 : kStatesMax;
      const Count count = explore(special, with_image, short_work, states_max);
      std::printf("%s%s%s: %llu states, %llu ends, %llu finished, %llu failed, %llu cancelled\n",
                  GetParam().name, with_image ? ", image" : "", short_work ? ", short" : ", long",
                  static_cast<unsigned long long>(count.states), static_cast<unsigned long long>(count.paths),
                  static_cast<unsigned long long>(count.finished),
                  static_cast<unsigned long long>(count.failed),
                  static_cast<unsigned long long>(count.cancelled));
      EXPECT_EQ(count.finished + count.failed + count.cancelled, count.paths);
      // What is lost once is redone: only a cancel or a deadline may keep a request from its end.
      if (special == Special::kCancel || special == Special::kMoveCancel) {
        EXPECT_GT(count.cancelled, count.finished);
      } else if (special == Special::kDeadline) {
        EXPECT_GT(count.failed, 0U);
      } else {
        EXPECT_EQ(count.finished, count.paths);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    OneRequest, Interleavings,
    ::testing::Values(Case{"none", Special::kNone}, Case{"cancel", Special::kCancel},
                      Case{"prefill_lost", Special::kLosePrefill}, Case{"decode_lost", Special::kLoseDecode},
                      Case{"encoder_lost", Special::kLoseEncoder}, Case{"deadline", Special::kDeadline},
                      Case{"lease", Special::kLease}, Case{"refused", Special::kRefuse},
                      Case{"hand_over_fails", Special::kHandOver}, Case{"moved", Special::kMove},
                      Case{"moved_and_back", Special::kMoveAndBack},
                      Case{"moved_then_cancel", Special::kMoveCancel}),
    [](const ::testing::TestParamInfo<Case>& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace trimtab::cluster
