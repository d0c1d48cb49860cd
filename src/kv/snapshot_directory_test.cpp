#include "kv/snapshot_directory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <variant>

#include "base/codec.h"
#include "base/prng.h"

namespace trimtab::kv {
namespace {

constexpr BlockKey kLayout{1, 1};

SnapshotName name(std::uint64_t n) { return {{n, n * 7}, 128 * static_cast<std::int64_t>(n + 1), kLayout}; }

SnapshotDelta delta(std::uint32_t machine, std::uint64_t epoch, std::uint64_t first,
                    std::vector<SnapshotChange> changes) {
  return {HostId{machine}, epoch, first, std::move(changes)};
}

std::vector<HostId> machines_with(const SnapshotDirectory& directory, std::uint64_t n) {
  std::vector<HostId> out;
  for (const auto& holder : directory.holders(name(n))) out.push_back(holder.machine);
  return out;
}

TEST(SnapshotJournal, NumbersEveryChangeAndKeepsTheLatest) {
  SnapshotJournal journal(HostId{3}, 9, 3);
  EXPECT_TRUE(journal.add(name(1)));
  EXPECT_FALSE(journal.add(name(1))) << "no change";
  EXPECT_FALSE(journal.remove(name(2)));
  journal.add(name(2));
  journal.remove(name(1));
  journal.add(name(3));
  EXPECT_EQ(journal.sequence(), 4U);
  const auto later = journal.since(2);
  ASSERT_TRUE(later);
  EXPECT_EQ(later->first, 3U);
  EXPECT_EQ(later->changes, (std::vector<SnapshotChange>{{false, name(1)}, {true, name(3)}}));
  EXPECT_EQ(journal.since(2, 1)->changes.size(), 1U);
  EXPECT_TRUE(journal.since(4)->changes.empty());
  EXPECT_FALSE(journal.since(0)) << "the first change is no longer known";
  EXPECT_FALSE(journal.since(5)) << "not of this life";
  EXPECT_EQ(journal.list(7).names, (std::vector<SnapshotName>{name(2), name(3)}));
}

TEST(SnapshotDirectory, TwoMachinesBothHold) {
  SnapshotDirectory directory;
  EXPECT_EQ(directory.apply(delta(2, 1, 1, {{true, name(5)}})), Applied::kApplied);
  EXPECT_EQ(directory.apply(delta(1, 1, 1, {{true, name(5)}, {true, name(6)}})), Applied::kApplied);
  EXPECT_EQ(machines_with(directory, 5), (std::vector<HostId>{HostId{1}, HostId{2}}));
  EXPECT_EQ(directory.apply(delta(1, 1, 3, {{false, name(5)}})), Applied::kApplied);
  EXPECT_EQ(machines_with(directory, 5), std::vector<HostId>{HostId{2}}) << "the other still has it";
  EXPECT_EQ(directory.entries(), 2U);
}

TEST(SnapshotDirectory, AMachineThatDiesIsGoneAtOnceAndForLateMessages) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 4, 1, {{true, name(5)}, {true, name(6)}}));
  directory.apply(delta(2, 4, 1, {{true, name(6)}}));
  const auto ticket = directory.ask(HostId{1});
  directory.remove_machine(HostId{1});
  EXPECT_TRUE(machines_with(directory, 5).empty());
  EXPECT_EQ(machines_with(directory, 6), std::vector<HostId>{HostId{2}});
  EXPECT_EQ(directory.apply(delta(1, 4, 3, {{true, name(7)}})), Applied::kDead) << "was under way";
  EXPECT_EQ(directory.apply(SnapshotList{HostId{1}, 4, 2, *ticket, {name(5)}}), Applied::kOld)
      << "asked for before the death";
  EXPECT_EQ(directory.entries(), 1U);
  // It had only been out of reach: a list asked for now brings it back.
  EXPECT_TRUE(directory.needs_list(HostId{1}));
  const auto again = directory.ask(HostId{1});
  EXPECT_NE(again, ticket);
  EXPECT_EQ(directory.apply(SnapshotList{HostId{1}, 4, 3, *again, {name(5), name(7)}}), Applied::kApplied);
  EXPECT_EQ(machines_with(directory, 7), std::vector<HostId>{HostId{1}});
  EXPECT_FALSE(directory.needs_list(HostId{1}));
}

TEST(SnapshotDirectory, ARestartDropsWhatTheOldLifeHeld) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 4, 1, {{true, name(5)}}));
  EXPECT_EQ(directory.apply(delta(1, 5, 1, {{true, name(6)}})), Applied::kApplied);
  EXPECT_TRUE(machines_with(directory, 5).empty());
  EXPECT_EQ(directory.apply(delta(1, 4, 2, {{true, name(7)}})), Applied::kOld);
  EXPECT_TRUE(machines_with(directory, 7).empty());
  EXPECT_EQ(directory.counts().restarts, 1U);
}

// dynamo PR#7072: recovery from a gap must end. PR#11190: a removal after a list must not take away what the
// list brought.
TEST(SnapshotDirectory, AGapIsClosedByTheMissingChangesOrByOneList) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 1, 1, {{true, name(1)}}));
  EXPECT_EQ(directory.apply(delta(1, 1, 3, {{false, name(2)}, {true, name(3)}})), Applied::kGap);
  EXPECT_TRUE(directory.needs_list(HostId{1}));
  EXPECT_EQ(directory.names_of(HostId{1}), std::vector<SnapshotName>{name(1)}) << "an old truth, no mixture";
  EXPECT_EQ(directory.apply(delta(1, 1, 2, {{true, name(2)}})), Applied::kApplied);
  EXPECT_EQ(directory.names_of(HostId{1}), (std::vector<SnapshotName>{name(1), name(3)}));
  EXPECT_FALSE(directory.needs_list(HostId{1}));

  EXPECT_EQ(directory.apply(delta(1, 1, 6, {{true, name(6)}})), Applied::kGap);
  const auto ticket = directory.ask(HostId{1});
  EXPECT_EQ(directory.ask(HostId{1}), ticket) << "one question at a time";
  EXPECT_EQ(directory.apply(SnapshotList{HostId{1}, 1, 5, *ticket, {name(5)}}), Applied::kApplied);
  EXPECT_EQ(directory.names_of(HostId{1}), (std::vector<SnapshotName>{name(5), name(6)}));
  EXPECT_FALSE(directory.needs_list(HostId{1}));
  EXPECT_EQ(directory.apply(delta(1, 1, 5, {{false, name(5)}})), Applied::kRepeated)
      << "the list knew of it: what came after it stays";
  EXPECT_EQ(directory.apply(SnapshotList{HostId{1}, 1, 9, *ticket, {}}), Applied::kOld) << "answered";
}

TEST(SnapshotDirectory, AListDoesNotUndoWhatCameAfterIt) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 1, 3, {{true, name(3)}}));
  const auto ticket = directory.ask(HostId{1});
  const SnapshotList list{HostId{1}, 1, 3, *ticket, {name(3)}};  // made, and then slow
  directory.apply(delta(1, 1, 1, {{true, name(1)}}));
  directory.apply(delta(1, 1, 6, {{true, name(6)}}));
  directory.apply(delta(1, 1, 2, {{false, name(1)}}));
  EXPECT_EQ(directory.apply(delta(1, 1, 4, {{true, name(4)}})), Applied::kApplied);
  EXPECT_TRUE(directory.needs_list(HostId{1})) << "the fifth change is missing";
  EXPECT_EQ(directory.apply(list), Applied::kRepeated);
  EXPECT_EQ(directory.names_of(HostId{1}), (std::vector<SnapshotName>{name(3), name(4)}));
  EXPECT_NE(directory.ask(HostId{1}), ticket) << "that question was answered, in vain";
}

TEST(SnapshotDirectory, AFetchThatFindsNothingWithdrawsWhatItSaw) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 1, 1, {{true, name(5)}}));
  const auto seen = directory.holders(name(5)).front();
  directory.apply(delta(1, 1, 2, {{false, name(5)}, {true, name(5)}}));
  EXPECT_FALSE(directory.withdraw(name(5), seen)) << "it was stored anew since";
  const auto now = directory.holders(name(5)).front();
  EXPECT_FALSE(directory.withdraw(name(6), now));
  EXPECT_TRUE(directory.withdraw(name(5), now));
  EXPECT_TRUE(directory.holders(name(5)).empty());
  EXPECT_FALSE(directory.withdraw(name(5), now));
  directory.apply(delta(1, 2, 1, {{true, name(5)}}));
  EXPECT_FALSE(directory.withdraw(name(5), now)) << "of another life";
}

TEST(SnapshotDirectory, NamesWithAnotherPrefixPositionOrLayoutAreOthers) {
  SnapshotDirectory directory;
  directory.apply(delta(1, 1, 1, {{true, name(5)}}));
  SnapshotName other = name(5);
  other.prefix.high ^= 1;
  EXPECT_TRUE(directory.holders(other).empty());
  other = name(5);
  other.position += 128;
  EXPECT_TRUE(directory.holders(other).empty());
  other = name(5);
  other.layout.low ^= 1;
  EXPECT_TRUE(directory.holders(other).empty());
  const std::vector<std::byte> content(64, std::byte{3});
  EXPECT_NE(snapshot_checksum(name(5), content), snapshot_checksum(other, content));
  const RingShape v41{20, 134, 128, 528};
  EXPECT_NE(layout_key(v41, "mxfp8"), layout_key({19, 134, 128, 528}, "mxfp8"));
  EXPECT_NE(layout_key(v41, "mxfp8"), layout_key(v41, "f16"));
  EXPECT_EQ(layout_key(v41, "mxfp8"), layout_key({20, 140, 128, 528}, "mxfp8")) << "rows are by position";
}

TEST(SnapshotDirectory, EndpointsOfAPrompt) {
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 10; ++i) keys.push_back({i, i});
  SnapshotDirectory directory;
  directory.apply(
      delta(1, 1, 1, {{true, snapshot_name(keys, 2, kLayout)}, {true, snapshot_name(keys, 9, kLayout)}}));
  directory.apply(delta(2, 1, 1, {{true, snapshot_name(keys, 6, kLayout)}}));
  EXPECT_EQ(directory.endpoints(keys, kLayout, 100), (std::vector<std::uint32_t>{2, 6, 9}));
  EXPECT_EQ(directory.endpoints(keys, kLayout, 5), (std::vector<std::uint32_t>{6, 9}));
  EXPECT_EQ(directory.endpoints(std::span{keys}.first(8), kLayout, 3), std::vector<std::uint32_t>{6});
  EXPECT_TRUE(directory.endpoints(keys, {2, 2}, 100).empty());
  EXPECT_TRUE(directory.endpoints({}, kLayout, 3).empty());
}

TEST(SnapshotDirectory, MemoryIsBounded) {
  SnapshotDirectory directory({2, 3, 4});
  EXPECT_EQ(directory.apply(delta(1, 1, 1, {{true, name(1)}, {true, name(2)}})), Applied::kApplied);
  EXPECT_EQ(directory.apply(delta(2, 1, 1, {{true, name(1)}, {true, name(2)}})), Applied::kApplied);
  EXPECT_EQ(directory.entries(), 3U);
  EXPECT_EQ(directory.counts().entries_refused, 1U);
  EXPECT_EQ(machines_with(directory, 2), std::vector<HostId>{HostId{1}});
  EXPECT_EQ(directory.apply(delta(3, 1, 1, {{true, name(3)}})), Applied::kRefused)
      << "two machines are known";
  EXPECT_FALSE(directory.ask(HostId{3}));
  directory.remove_machine(HostId{2});
  EXPECT_EQ(directory.apply(delta(3, 1, 1, {{true, name(3)}})), Applied::kApplied) << "the dead make room";
  EXPECT_EQ(directory.machines(), 2U);
  // Behind a gap at most four changes wait; that there is a gap is not forgotten.
  EXPECT_EQ(directory.apply(delta(3, 1, 3, {5, {true, name(4)}})), Applied::kRefused);
  EXPECT_EQ(directory.apply(delta(3, 1, 9, {3, {true, name(4)}})), Applied::kGap);
  EXPECT_EQ(directory.apply(delta(3, 1, 3, {2, {true, name(4)}})), Applied::kGap);
  EXPECT_TRUE(directory.needs_list(HostId{3}));
  EXPECT_EQ(directory.apply(delta(3, 1, UINT64_MAX - 1, {{true, name(4)}})), Applied::kRefused);
  EXPECT_EQ(directory.apply(delta(3, 1, 0, {{true, name(4)}})), Applied::kRefused);
}

TEST(SnapshotDirectory, FetchesGoHomeFirstThenToTheLeastBusy) {
  const std::vector<SnapshotDirectory::Holder> three = {
      {HostId{1}, 1, 1}, {HostId{2}, 1, 1}, {HostId{3}, 1, 1}};
  EXPECT_EQ(choose_holder(three, HostId{3}, {{HostId{3}, 9}}).machine, HostId{3});
  EXPECT_EQ(choose_holder(three, HostId{4}, {{HostId{1}, 2}, {HostId{2}, 1}, {HostId{3}, 1}}).machine,
            HostId{2});
  EXPECT_EQ(choose_holder(three, HostId{4}, {}).machine, HostId{1});
}

TEST(SnapshotMessages, SurviveTheWire) {
  const SnapshotDelta sent = delta(3, 8, 40, {{true, name(1)}, {false, name(2)}});
  const auto back = base::decode<SnapshotDelta>(base::encode(sent));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->machine, sent.machine);
  EXPECT_EQ(back->first, 40U);
  EXPECT_EQ(back->changes, sent.changes);
  const auto list = base::decode<SnapshotList>(base::encode(SnapshotList{HostId{3}, 8, 41, 5, {name(1)}}));
  ASSERT_TRUE(list);
  EXPECT_EQ(list->ticket, 5U);
  EXPECT_EQ(list->names, std::vector<SnapshotName>{name(1)});
}

/// Machines that add, remove, restart and die, and a network that loses, repeats and reorders. The naive
/// model replays the machine's own history up to the change that the directory says it stands at.
class Network {
 public:
  explicit Network(std::uint64_t seed) : prng_(seed) {
    for (std::uint32_t m = 0; m < kMachines; ++m) restart(m);
  }

  void step() {
    const auto m = static_cast<std::uint32_t>(prng_.below(kMachines));
    switch (prng_.below(12)) {
      case 0:
        if (prng_.below(6) == 0) restart(m);
        break;
      case 1:
        if (prng_.below(4) == 0) {
          directory_.remove_machine(HostId{m});
          RC_ASSERT(directory_.names_of(HostId{m}).empty());
          seen_[m] = {};
        }
        break;
      case 2:
        if (directory_.needs_list(HostId{m}) || prng_.below(10) == 0)
          answers_list(m, *directory_.ask(HostId{m}));
        break;
      case 3:
        withdraw_something();
        break;
      case 4:
      case 5:
        send(m);
        break;
      case 6:
      case 7:
      case 8:
        deliver();
        break;
      default:
        change(m);
    }
    check();
  }

  /// Once messages arrive again, each machine costs at most one list and all is known.
  void prove_that_it_converges() {
    under_way_.clear();
    const auto lists_before = directory_.counts().lists_applied;
    for (std::uint32_t m = 0; m < kMachines; ++m) {
      change(m);
      const SnapshotJournal& journal = *lives_[m].back().journal;
      directory_.apply(*journal.since(journal.sequence() - 1));
      if (directory_.needs_list(HostId{m}))
        RC_ASSERT(directory_.apply(journal.list(*directory_.ask(HostId{m}))) == Applied::kApplied);
      RC_ASSERT(!directory_.needs_list(HostId{m}));
      RC_ASSERT(directory_.machine(HostId{m})->sequence == journal.sequence());
    }
    RC_ASSERT(directory_.counts().lists_applied - lists_before <= kMachines);
    check();
  }

 private:
  static constexpr std::uint32_t kMachines = 3;
  using Message = std::variant<SnapshotDelta, SnapshotList>;
  struct Life {
    std::unique_ptr<SnapshotJournal> journal;
    std::vector<SnapshotChange> history;              // all of it
    std::map<SnapshotName, std::uint64_t> withdrawn;  // entries known at most at this change
  };

  void restart(std::uint32_t m) {
    const std::uint64_t epoch = lives_[m].size() + 1;
    lives_[m].push_back({std::make_unique<SnapshotJournal>(HostId{m}, epoch, 6), {}, {}});
  }
  void change(std::uint32_t m) {
    Life& life = lives_[m].back();
    while (true) {  // until something changes
      const SnapshotName n = name(prng_.below(8));
      const bool add = prng_.below(2) == 0;
      if (!(add ? life.journal->add(n) : life.journal->remove(n))) continue;
      life.history.push_back({add, n});
      return;
    }
  }
  /// Some of the latest changes, cut anywhere.
  void send(std::uint32_t m) {
    const SnapshotJournal& journal = *lives_[m].back().journal;
    const std::uint64_t back = prng_.below(std::min<std::uint64_t>(journal.sequence(), 6) + 1);
    const auto cut = journal.since(journal.sequence() - back, 1 + prng_.below(6));
    if (cut) under_way_.push_back(*cut);
  }
  void answers_list(std::uint32_t m, std::uint64_t ticket) {
    under_way_.push_back(lives_[m].back().journal->list(ticket));
  }
  void deliver() {
    if (under_way_.empty()) return;
    const std::size_t which = prng_.below(under_way_.size());
    const Message message = under_way_[which];
    const std::uint64_t fate = prng_.below(5);
    if (fate != 0) under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));  // 0: repeated
    if (fate != 1) std::visit([this](const auto& m) { directory_.apply(m); }, message);        // 1: lost
  }
  void withdraw_something() {
    const SnapshotName n = name(prng_.below(8));
    const auto holders = directory_.holders(n);
    if (holders.empty()) return;
    const auto& seen = holders[prng_.below(holders.size())];
    RC_ASSERT(directory_.withdraw(n, seen));
    lives_[seen.machine.value][seen.epoch - 1].withdrawn[n] = seen.sequence;
  }

  void check() {
    std::size_t entries = 0;
    std::map<SnapshotName, std::vector<SnapshotDirectory::Holder>> holders;
    for (std::uint32_t m = 0; m < kMachines; ++m) {
      const auto stands = directory_.machine(HostId{m});
      const auto shown = directory_.names_of(HostId{m});
      if (!stands || stands->epoch == 0) {
        RC_ASSERT(shown.empty());
        continue;
      }
      const std::pair now(stands->epoch, stands->sequence);
      RC_ASSERT(now >= seen_[m]);  // knowledge of a living machine does not go back
      seen_[m] = now;
      const Life& life = lives_[m][stands->epoch - 1];
      std::map<SnapshotName, std::uint64_t> truth;
      for (std::uint64_t i = 0; i < stands->sequence; ++i) {
        if (life.history[i].added) {
          truth[life.history[i].name] = i + 1;
        } else {
          truth.erase(life.history[i].name);
        }
      }
      // A list brings back what was withdrawn, so it may be shown; all else is the truth at that change.
      std::set<SnapshotName> set(shown.begin(), shown.end());
      RC_ASSERT(set.size() == shown.size());
      for (const SnapshotName& n : shown) RC_ASSERT(truth.contains(n));
      for (const auto& [n, added_at] : truth) {
        const auto withdrawn = life.withdrawn.find(n);
        const bool may_lack = withdrawn != life.withdrawn.end() && added_at <= withdrawn->second;
        RC_ASSERT(set.contains(n) || may_lack);
      }
      for (const SnapshotName& n : shown) holders[n].push_back(*stands);
      entries += shown.size();
    }
    RC_ASSERT(directory_.entries() == entries);
    for (std::uint64_t n = 0; n < 8; ++n) RC_ASSERT(directory_.holders(name(n)) == holders[name(n)]);
  }

  base::Prng prng_;
  SnapshotDirectory directory_;
  std::array<std::vector<Life>, kMachines> lives_;
  std::array<std::pair<std::uint64_t, std::uint64_t>, kMachines> seen_{};  // epoch, change
  std::vector<Message> under_way_;
};

RC_GTEST_PROP(SnapshotDirectoryProperty, ShowsAnOldTruthWhateverTheNetworkDoesAndConverges, ()) {
  Network network(*rc::gen::arbitrary<std::uint64_t>());
  for (int i = 0; i < 500; ++i) network.step();
  network.prove_that_it_converges();
}

}  // namespace
}  // namespace trimtab::kv
