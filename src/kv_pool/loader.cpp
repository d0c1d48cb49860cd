#include "kv_pool/loader.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "ipc/channel.h"
#include "ipc/segment.h"
#include "ipc/steady_clock.h"
#include "kv_pool/fetch_desk.h"
#include "kv_pool/loader_start.h"
#include "kv_pool/pool_store.h"
#include "kv_pool/progress_ring.h"
#include "kv_pool/socket_lock.h"
#include "kv_pool/target_list.h"

namespace trimtab::kv_pool {

namespace {

constexpr std::uint64_t kSlotAlignment = 4096;
constexpr std::uint64_t kKeysPerMatchMax = 1U << 20;
constexpr base::Nanos kDrainPatience{20'000'000'000};
constexpr std::uint64_t kBytesReady = 64ULL << 20;  // of shard buffers at start: of 64K tokens
constexpr const char* kNoTargets = "this pool has no targets: it is in memory only";

FetchDesk::Limits desk_limits(const LoaderOptions& options, std::uint64_t slots) {
  FetchDesk::Limits limits;
  // One user cannot hold so much that there is nothing for another, and all of them leave room for puts.
  limits.slots.held_per_client = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, slots / 2));
  limits.slots.held_in_all = static_cast<std::uint32_t>(slots - std::max<std::uint64_t>(1, slots / 8));
  limits.loads_most = std::max(1U, options.loads_most);
  limits.layers = std::max(1U, static_cast<std::uint32_t>(options.kv.layer_bytes.size()));
  return limits;
}

class Loader {
 public:
  static base::Result<std::unique_ptr<Loader>> start(const LoaderOptions& options);
  void serve(const std::atomic<bool>& stop);
  ~Loader() {
    for (auto& [id, connection] : connections_) close(connection.fd);
    if (listener_) unlink(options_.socket_path.c_str());  // else it may be another loader's
  }

 private:
  struct Connection {
    int fd = -1;
    bool welcomed = false;
    ipc::FrameSplitter splitter;
    RingWriter ring;
  };

  explicit Loader(const LoaderOptions& options) : options_(options) {}
  std::uint64_t block_bytes() const { return static_cast<std::uint64_t>(options_.kv.block_bytes.value); }
  base::Status open_tier(std::uint64_t& blocks);
  void turn(int timeout_ms, bool serving);
  void accept_one();
  /// False: the connection has ended or broke the protocol.
  bool read_from(ClientId id, Connection& connection);
  bool handle(ClientId id, Connection& connection, const ipc::Frame& frame);
  bool handle_hello(Connection& connection, const ipc::Frame& frame);
  bool handle_fetch(ClientId id, Connection& connection, const ipc::Frame& frame);
  bool handle_put(ClientId id, Connection& connection, const ipc::Frame& frame);
  bool handle_data(ClientId id, Connection& connection, const ipc::Frame& frame);
  bool handle_operator(Connection& connection, const ipc::Frame& frame);
  void drop(ClientId id);
  void deliver();
  void post_progress();
  PoolStats stats() const;

  template <class M>
  bool send(Connection& connection, const M& message) {
    // Answers are small and one is due at a time: a full socket means that the user does not read.
    const std::vector<std::byte> bytes = ipc::pack(wire::to_frame(message));
    const ssize_t sent = ::send(connection.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == static_cast<ssize_t>(bytes.size());
  }

  LoaderOptions options_;
  SocketLock lock_;  // before all that ends first
  std::uint64_t slot_stride_ = 0;
  ipc::Segment arena_;
  ipc::SteadyClock clock_;
  std::unique_ptr<StoreTier> tier_;
  std::unique_ptr<PoolStore> store_;
  std::unique_ptr<FetchDesk> desk_;
  std::optional<ipc::Listener> listener_;
  std::map<ClientId, Connection> connections_;
  ClientId next_client_ = 1;
  std::vector<std::string> places_;  // of the targets, without passwords
  std::string said_trouble_;
};

base::Status Loader::open_tier(std::uint64_t& blocks) {
  auto layout = kv_code::StripeLayout::make(options_.kv);
  if (!layout) return tl::unexpected(layout.error());
  auto targets = open_targets(options_.targets, options_.file_bytes, layout->shard_bytes);
  if (!targets) return tl::unexpected(targets.error());
  StoreTier::Options tier;
  tell(options_, tier);
  blocks = targets->capacity_bytes / (kv_code::kShards * on_disk(layout->shard_bytes));
  tier.capacity_blocks = blocks;
  // The first layer of every block before the rest of any: computing can begin with it.
  tier.store.first_layers = layout->layers.size() > 1 ? 1 : 0;
  // For that a whole hit must be under way at once; what a target has to answer at a time is bounded too.
  tier.store.read_bytes_in_flight = std::clamp<std::uint64_t>(
      options_.loads_most * kv_code::kShards * layout->shard_bytes, 32ULL << 20, 128ULL << 20);
  tier.store.buffers_ready = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(options_.loads_most * kv_code::kShards, kBytesReady / layout->shard_bytes));
  for (const std::string& spec : options_.targets) places_.push_back(place_of(spec));
  tier.places = places_;
  tier.clock = &clock_;
  const std::uint64_t share = directory_share(options_.targets, options_.file_bytes);
  tier.open_target = [this, share, shard_bytes = layout->shard_bytes](const std::string& place) {
    // Passwords are in the list, never in the map. It must not wait: one thread serves everybody.
    const auto named = std::ranges::find(places_, place);
    const std::string& spec =
        named == places_.end() ? place : options_.targets[static_cast<std::size_t>(named - places_.begin())];
    return open_target(spec, share, shard_bytes, kNoPatience);
  };
  tier.store.layout = std::move(*layout);
  auto opened = StoreTier::open(std::move(targets->targets), std::move(tier), clock_.now());
  if (!opened) return tl::unexpected(opened.error());
  tier_ = std::move(*opened);
  for (const std::string& note : tier_->notes())
    std::fputs(fmt::format("kv-loader: {}\n", note).c_str(), stderr);
  return {};
}

base::Result<std::unique_ptr<Loader>> Loader::start(const LoaderOptions& options) {
  const auto block_bytes = static_cast<std::uint64_t>(options.kv.block_bytes.value);
  if (block_bytes == 0)
    return base::fail(base::Code::kInvalidArgument, "a pool needs the size of a block", "kv_pool");
  std::unique_ptr<Loader> loader(new Loader(options));
  const std::uint64_t stride = (block_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  const std::uint64_t slots = std::min<std::uint64_t>(options.memory_bytes / stride, 1U << 28);
  if (slots < 2) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("pool.memory_bytes = {} holds {} blocks of {} bytes: at least 2 are needed",
                                  options.memory_bytes, slots, stride),
                      "kv_pool");
  }
  TRIMTAB_TRY(loader->lock_.take(options.socket_path));
  std::uint64_t tier_blocks = 0;
  if (!options.targets.empty()) TRIMTAB_TRY(loader->open_tier(tier_blocks));
  auto arena = ipc::Segment::anonymous("trimtab-pool", slots * stride, options.huge_pages);
  if (!arena) return tl::unexpected(arena.error());
  loader->arena_ = std::move(*arena);
  loader->slot_stride_ = stride;
  const auto epoch = first_epoch(options.socket_path);
  if (!epoch) return tl::unexpected(epoch.error());
  auto order = memory_order(options, slots);
  if (!order) return tl::unexpected(order.error());
  loader->store_ =
      std::make_unique<PoolStore>(loader->arena_.bytes().first(slots * stride), stride, block_bytes, *epoch,
                                  loader->tier_.get(), tier_blocks, std::move(*order));
  loader->store_->expire_after(options.ttl);
  loader->desk_ = std::make_unique<FetchDesk>(*loader->store_, desk_limits(options, slots));
  // Users dial this path, so it comes last: whoever gets in is served.
  auto listener = ipc::Listener::bind(options.socket_path);
  if (!listener) return tl::unexpected(listener.error());
  loader->listener_.emplace(std::move(*listener));
  return loader;
}

void Loader::serve(const std::atomic<bool>& stop) {
  while (!stop.load()) turn(100, true);
  const base::Nanos end = clock_.now() + kDrainPatience;
  while (!store_->idle() && clock_.now() < end) turn(100, false);
}

void Loader::turn(int timeout_ms, bool serving) {
  std::vector<pollfd> items;
  std::vector<ClientId> ids;
  items.push_back({serving ? listener_->fd() : -1, POLLIN, 0});
  for (const auto& [id, connection] : connections_) {
    items.push_back({serving ? connection.fd : -1, POLLIN, 0});  // no new work while the last blocks drain
    ids.push_back(id);
  }
  if (tier_) {
    for (const int fd : tier_->wake_fds()) items.push_back({fd, POLLIN, 0});
    const std::int64_t until = (tier_->next_wake() - clock_.now()).value;
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>((until + 999'999) / 1'000'000, 0, timeout_ms));
  }
  const std::int64_t deadline = (desk_->next_wake() - clock_.now()).value;
  timeout_ms = static_cast<int>(std::clamp<std::int64_t>((deadline + 999'999) / 1'000'000, 0, timeout_ms));
  for (const auto& [id, connection] : connections_)
    if (connection.ring.waiting() > 0) timeout_ms = std::min(timeout_ms, 1);  // its reader may have made room
  if (poll(items.data(), items.size(), timeout_ms) < 0) return;  // a signal: the caller looks at `stop`
  store_->at(clock_.now());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (items[i + 1].revents != 0 && !read_from(ids[i], connections_.at(ids[i]))) drop(ids[i]);
  }
  if (items[0].revents != 0) accept_one();
  store_->advance();
  deliver();
}

void Loader::accept_one() {
  auto fd = listener_->accept(base::Nanos{0});
  if (fd && *fd) connections_[next_client_++].fd = **fd;
}

void Loader::drop(ClientId id) {
  close(connections_.at(id).fd);
  connections_.erase(id);
  desk_->leave(id);
  store_->leave(id);
}

bool Loader::read_from(ClientId id, Connection& connection) {
  std::array<std::byte, 65'536> piece;
  const ssize_t n = recv(connection.fd, piece.data(), piece.size(), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  connection.splitter.append({piece.data(), static_cast<std::size_t>(n)});
  while (true) {
    auto frame = connection.splitter.next();
    if (!frame) return false;
    if (!frame->has_value()) return true;
    if (!handle(id, connection, **frame)) return false;
  }
}

bool Loader::handle_hello(Connection& connection, const ipc::Frame& frame) {
  const auto hello = wire::from_frame<protocol::Hello>(frame);
  if (!hello) return false;
  const FetchDesk::Limits limits = desk_limits(options_, store_->stats().memory_slots);
  protocol::Welcome welcome;
  welcome.slots = static_cast<std::uint32_t>(store_->stats().memory_slots);
  welcome.slot_stride = slot_stride_;
  welcome.block_bytes = block_bytes();
  welcome.layers = limits.layers;
  welcome.held_most = std::min(limits.slots.held_per_client, limits.slots.held_in_all);
  if (hello->version != protocol::kVersion) {
    welcome.refusal = fmt::format("the pool speaks version {}, this process {}: restart it from one build",
                                  protocol::kVersion, hello->version);
  } else if (hello->block_bytes != 0 && hello->block_bytes != block_bytes()) {
    welcome.refusal = fmt::format("the pool holds blocks of {} bytes, this process has blocks of {}",
                                  block_bytes(), hello->block_bytes);
  }
  if (!welcome.refusal.empty()) return send(connection, welcome);
  auto ring = RingWriter::make(std::max(1U, options_.ring_entries));
  if (!ring) {
    welcome.refusal = ring.error().message;
    return send(connection, welcome);
  }
  connection.ring = std::move(*ring);
  connection.welcomed = true;
  const int descriptors[] = {arena_.fd(), connection.ring.fd()};
  return ipc::send_with_descriptors(connection.fd, wire::to_frame(welcome), descriptors);
}

bool Loader::handle(ClientId id, Connection& connection, const ipc::Frame& frame) {
  if (!connection.welcomed) return handle_hello(connection, frame);
  const wire::Type type = wire::type_of(frame);
  if (type == protocol::Match::kType) {
    const auto match = wire::from_frame<protocol::Match>(frame);
    if (!match || match->keys.size() > kKeysPerMatchMax) return false;
    return send(connection, store_->match(match->keys, match->counted != 0, match->prompt_blocks));
  }
  if (type == protocol::Answered::kType) {
    const auto answer = wire::from_frame<protocol::Answered>(frame);
    if (answer) store_->answered(answer->request, answer->tokens);
    return answer.has_value();
  }
  if (type == protocol::Flush::kType) {
    const auto answer = store_->flush(id);
    return !answer || send(connection, *answer);
  }
  if (type == protocol::AskStats::kType) {
    return send(connection, protocol::Stats{stats()});
  }
  if (type == protocol::Fetch::kType || type == protocol::CancelFetch::kType ||
      type == protocol::Release::kType)
    return handle_fetch(id, connection, frame);
  if (type == protocol::Put::kType || type == protocol::Commit::kType)
    return handle_put(id, connection, frame);
  if (type == protocol::Manage::kType || type == protocol::AskPool::kType)
    return handle_operator(connection, frame);
  return handle_data(id, connection, frame);
}

bool Loader::handle_operator(Connection& connection, const ipc::Frame& frame) {
  if (wire::type_of(frame) == protocol::AskPool::kType) {
    if (tier_ == nullptr) return send(connection, protocol::Pool{kNoTargets, {}});
    return send(connection, protocol::Pool{{}, tier_->report(clock_.now())});
  }
  const auto change = wire::from_frame<protocol::Manage>(frame);
  if (!change) return false;
  if (tier_ == nullptr) return send(connection, protocol::Managed{kNoTargets});
  const auto begun = tier_->manage(*change, clock_.now());
  return send(connection, protocol::Managed{begun ? std::string() : begun.error().message});
}

bool Loader::handle_data(ClientId id, Connection& connection, const ipc::Frame& frame) {
  const wire::Type type = wire::type_of(frame);
  if (type == protocol::Get::kType) {
    const auto get = wire::from_frame<protocol::Get>(frame);
    if (!get) return false;
    const auto answer = store_->get(id, get->key);
    return !answer || send(connection, *answer);
  }
  if (type == protocol::Unpin::kType) {
    const auto unpin = wire::from_frame<protocol::Unpin>(frame);
    return unpin && store_->unpin(id, unpin->slot, unpin->corrupt != 0);
  }
  return false;
}

bool Loader::handle_put(ClientId id, Connection& connection, const ipc::Frame& frame) {
  if (wire::type_of(frame) == protocol::Put::kType) {
    const auto put = wire::from_frame<protocol::Put>(frame);
    if (!put) return false;
    std::optional<BlockKey> parent;
    if (put->has_parent != 0) parent = put->parent;
    return send(connection, store_->put(id, put->key, parent));
  }
  const auto commit = wire::from_frame<protocol::Commit>(frame);
  return commit && store_->commit(id, commit->slot, commit->checksum) &&
         send(connection, protocol::Committed{});
}

bool Loader::handle_fetch(ClientId id, Connection& connection, const ipc::Frame& frame) {
  const wire::Type type = wire::type_of(frame);
  if (type == protocol::Fetch::kType) {
    const auto fetch = wire::from_frame<protocol::Fetch>(frame);
    return fetch && desk_->fetch(id, *fetch, clock_.now());
  }
  if (type == protocol::CancelFetch::kType) {
    const auto cancel = wire::from_frame<protocol::CancelFetch>(frame);
    if (!cancel) return false;
    desk_->cancel(id, cancel->plan);
    connection.ring.drop(cancel->plan);
    return true;
  }
  const auto release = wire::from_frame<protocol::Release>(frame);
  return release && desk_->release(id, release->plan, release->blocks, release->corrupt != 0);
}

PoolStats Loader::stats() const {
  PoolStats stats = store_->stats();
  desk_->count(stats);
  stats.clients = connections_.size();
  for (const auto& [id, connection] : connections_) stats.ring_waiting += connection.ring.waiting();
  return stats;
}

void Loader::post_progress() {
  for (const FetchDesk::Post& post : desk_->take_posts())
    if (const auto found = connections_.find(post.client); found != connections_.end())
      found->second.ring.push(post.entry);
  std::vector<ClientId> broken;
  for (auto& [id, connection] : connections_)
    if (!connection.ring.flush()) broken.push_back(id);
  for (const ClientId id : broken) drop(id);
}

void Loader::deliver() {
  PoolStore::Answers answers = store_->take_answers();
  const auto answer = [this](ClientId id, const auto& message) {
    const auto found = connections_.find(id);
    if (found != connections_.end() && !send(found->second, message)) drop(id);
  };
  for (const auto& [id, got] : answers.gets) answer(id, got);
  for (const auto& [id, flushed] : answers.flushes) answer(id, flushed);
  desk_->advance(answers.leases, clock_.now());
  post_progress();
  // Not fmt::print: it throws where the line cannot be written, and the log may lie on the disk that is full.
  for (const std::string& error : answers.disk_errors)
    std::fputs(fmt::format("kv-loader: {}: {}\n", fmt::join(places_, ", "), error).c_str(), stderr);
  if (tier_ && tier_->map_trouble() != said_trouble_) {
    said_trouble_ = tier_->map_trouble();
    if (!said_trouble_.empty())
      std::fputs(fmt::format("kv-loader: the pool's map was changed: {}\n", said_trouble_).c_str(), stderr);
  }
}

}  // namespace

base::Status run_loader(const LoaderOptions& options, const std::atomic<bool>& stop) {
  // A file size limit is an error of `write` like a full disk, not a reason to die.
  std::signal(SIGXFSZ, SIG_IGN);
  auto loader = Loader::start(options);
  if (!loader) return tl::unexpected(loader.error());
  (*loader)->serve(stop);
  return {};
}

}  // namespace trimtab::kv_pool
