#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/channel.h"
#include "ipc/segment.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/progress_ring.h"
#include "kv_pool/protocol.h"

namespace trimtab::kv_pool::testing {

/// A loader that a test drives by hand: it takes fetch plans and says of them what the test tells it to,
/// layer by layer, right or wrong. Puts are refused, or held until the test grants them. When it goes, its
/// users find their loader dead.
class HandLoader {
 public:
  struct Plan {
    std::uint64_t connection = 0;
    protocol::Fetch fetch;
  };

  struct Put {
    std::uint64_t connection = 0;
    model::BlockKey key;
  };
  struct Stored {
    std::uint64_t checksum = 0;
    std::vector<std::byte> content;
  };

  HandLoader(const std::string& socket_path, std::uint64_t block_bytes, std::uint32_t layers,
             std::uint32_t slots = 32)
      : block_bytes_(block_bytes), layers_(layers), slots_(slots) {
    auto listener = ipc::Listener::bind(socket_path);
    auto arena = ipc::Segment::anonymous("hand-loader", slots * block_bytes, false);
    EXPECT_TRUE(listener && arena);
    listener_.emplace(std::move(*listener));
    arena_ = std::move(*arena);
    acceptor_ = std::thread([this] { accept(); });
  }
  HandLoader(const HandLoader&) = delete;
  HandLoader& operator=(const HandLoader&) = delete;
  ~HandLoader() {
    stop_.store(true);
    acceptor_.join();
    listener_.reset();
    for (auto& [id, user] : users_) user->channel.shutdown();
    for (auto& [id, user] : users_) user->thread.join();
  }

  std::span<std::byte> slot(std::uint32_t number) const {
    return arena_.bytes().subspan(number * block_bytes_, block_bytes_);
  }
  /// The next plan that somebody asks for.
  std::optional<Plan> next_plan(int seconds = 20) { return next_of(plans_, seconds); }
  /// The user gave the plan up, or is done with it.
  bool ended(const Plan& plan, int seconds = 20) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] {
      return ended_.contains({plan.connection, plan.fetch.plan});
    });
  }
  /// Blocks whose content did not match, of all plans.
  std::vector<model::BlockKey> corrupt() {
    const std::lock_guard lock(mutex_);
    return corrupt_;
  }

  /// Puts wait from now on for `grant`; after `refuse_puts` those that come are refused again.
  void hold_puts() { hold_puts_.store(true); }
  void refuse_puts() { hold_puts_.store(false); }
  std::optional<Put> next_put(int seconds = 20) { return next_of(puts_, seconds); }
  void grant(const Put& put, std::uint32_t slot) {
    const std::lock_guard lock(mutex_);
    const protocol::PutSlot granted{protocol::PutOutcome::kGranted, slot};
    EXPECT_TRUE(users_.at(put.connection)->channel.send(wire::to_frame(granted)));
  }
  /// What was put into a granted slot, at the moment when its user said that it was.
  std::optional<Stored> next_stored(int seconds = 20) { return next_of(stored_, seconds); }

  /// The first `layers` layers of the block lie in `slot`.
  void layers(const Plan& plan, std::uint32_t block, std::uint32_t slot, std::uint32_t layers) {
    say(plan, {0, block, slot, layers, FetchOutcome::kLayers, 0});
  }
  /// All of it does, and it is to have the checksum of `right`.
  void whole(const Plan& plan, std::uint32_t block, std::uint32_t slot, std::span<const std::byte> right) {
    const std::uint64_t checksum = content_checksum(plan.fetch.keys.at(block), right);
    say(plan, {0, block, slot, layers_, FetchOutcome::kWhole, checksum});
  }
  void over(const Plan& plan, std::uint32_t block, FetchOutcome outcome) {
    say(plan, {0, block, 0, 0, outcome, 0});
  }

 private:
  struct User {
    explicit User(int fd) : channel(fd) {}
    ipc::Channel channel;
    std::optional<RingWriter> ring;
    std::map<std::uint64_t, std::vector<model::BlockKey>> plans;
    std::thread thread;
  };

  template <class T>
  std::optional<T> next_of(std::deque<T>& queue, int seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(seconds), [&] { return !queue.empty(); });
    if (queue.empty()) return std::nullopt;
    T next = std::move(queue.front());
    queue.pop_front();
    return next;
  }
  void say(const Plan& plan, ProgressEntry entry) {
    const std::lock_guard lock(mutex_);
    entry.plan = plan.fetch.plan;
    RingWriter& ring = *users_.at(plan.connection)->ring;
    ring.push(entry);
    EXPECT_TRUE(ring.flush());
  }
  void accept() {
    while (!stop_.load()) {
      const auto fd = listener_->accept(base::Nanos{20'000'000});
      if (!fd || !*fd) continue;
      const std::lock_guard lock(mutex_);
      auto user = std::make_unique<User>(**fd);
      User& mine = *user;
      const std::uint64_t id = users_.size();
      users_.emplace(id, std::move(user));
      mine.thread = std::thread([this, id, &mine] { serve(id, mine); });
    }
  }
  void serve(std::uint64_t id, User& user) {
    while (true) {
      const auto frame = user.channel.receive();
      if (!frame || !*frame) return;
      handle(id, user, **frame);
    }
  }
  void handle(std::uint64_t id, User& user, const ipc::Frame& frame) {
    const auto is = [&](wire::Type type) { return wire::type_of(frame) == type; };
    const std::lock_guard lock(mutex_);
    if (is(protocol::Hello::kType)) {
      user.ring = *RingWriter::make(256);
      const protocol::Welcome welcome{{}, slots_, block_bytes_, block_bytes_, layers_, slots_ / 2};
      const int descriptors[] = {arena_.fd(), user.ring->fd()};
      EXPECT_TRUE(ipc::send_with_descriptors(user.channel.fd(), wire::to_frame(welcome), descriptors));
    } else if (is(protocol::Fetch::kType)) {
      Plan plan{id, *wire::from_frame<protocol::Fetch>(frame)};
      user.plans[plan.fetch.plan] = plan.fetch.keys;
      plans_.push_back(std::move(plan));
    } else if (is(protocol::CancelFetch::kType)) {
      ended_.insert({id, wire::from_frame<protocol::CancelFetch>(frame)->plan});
    } else if (is(protocol::Release::kType)) {
      const auto release = *wire::from_frame<protocol::Release>(frame);
      for (const std::uint32_t block : release.blocks)
        if (release.corrupt != 0) corrupt_.push_back(user.plans.at(release.plan).at(block));
    } else if (is(protocol::Put::kType) && hold_puts_.load()) {
      puts_.push_back({id, wire::from_frame<protocol::Put>(frame)->key});
    } else if (is(protocol::Commit::kType)) {
      const auto commit = *wire::from_frame<protocol::Commit>(frame);
      const auto content = slot(commit.slot);
      stored_.push_back({commit.checksum, {content.begin(), content.end()}});
      EXPECT_TRUE(user.channel.send(wire::to_frame(protocol::Committed{})));
    } else if (is(protocol::Put::kType)) {
      EXPECT_TRUE(user.channel.send(wire::to_frame(protocol::PutSlot{})));
    } else if (is(protocol::AskStats::kType)) {
      EXPECT_TRUE(user.channel.send(wire::to_frame(protocol::Stats{})));
    }
    changed_.notify_all();
  }

  std::uint64_t block_bytes_;
  std::uint32_t layers_, slots_;
  std::optional<ipc::Listener> listener_;
  ipc::Segment arena_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::unique_ptr<User>> users_;
  std::deque<Plan> plans_;
  std::atomic<bool> hold_puts_{false};
  std::deque<Put> puts_;
  std::deque<Stored> stored_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> ended_;
  std::vector<model::BlockKey> corrupt_;
  std::thread acceptor_;
};

}  // namespace trimtab::kv_pool::testing
