#include "engine/block_mover.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "ipc/steady_clock.h"

namespace trimtab::engine {

namespace {

// What has not come by then is computed; so often a fetch looks whether it is still wanted, and after so
// long a silence whether the loader is still there.
constexpr base::Nanos kFetchPatience{10'000'000'000}, kLook{20'000'000}, kQuiet{1'000'000'000};

}  // namespace

BlockMover::BlockMover(const KvArena& arena, Transport& transport, std::string pool_socket,
                       std::function<void(MoveDone)> on_done)
    : arena_(arena),
      transport_(transport),
      pool_socket_(std::move(pool_socket)),
      on_done_(std::move(on_done)),
      thread_([this] { run(); }) {}

BlockMover::~BlockMover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    cancel_current_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BlockMover::submit(MoveJob job) {
  TRIMTAB_CHECK(!job.blocks.empty());
  {
    const std::lock_guard lock(mutex_);
    queues_.of(job.kind).push_back(std::move(job));
  }
  changed_.notify_all();
}

void BlockMover::cancel(model::RequestId id) {
  std::vector<MoveJob> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (current_ == id) cancel_current_ = true;
    for (auto& queue : queues_) {
      for (auto job = queue.begin(); job != queue.end();) {
        if (job->id != id) {
          ++job;
          continue;
        }
        dropped.push_back(std::move(*job));
        job = queue.erase(job);
      }
    }
  }
  for (MoveJob& job : dropped) on_done_({std::move(job), 0, true, {}});
}

void BlockMover::run() {
  while (true) {
    MoveJob job;
    {
      std::unique_lock lock(mutex_);
      current_.reset();
      changed_.wait(lock, [this] { return stopping_ || !queues_.empty(); });
      if (stopping_) return;
      job = queues_.take();
      current_ = job.id;
      cancel_current_ = false;
    }
    on_done_(perform(std::move(job)));
  }
}

bool BlockMover::cancelled() {
  const std::lock_guard lock(mutex_);
  return cancel_current_;
}

MoveDone BlockMover::perform(MoveJob job) {
  MoveDone done;
  if (job.kind == MoveJob::Kind::kFetch) {
    fetch(job, done);
  } else {
    for (std::size_t i = 0; i < job.blocks.size() && done.status; ++i) {
      done.cancelled = cancelled();
      if (done.cancelled) break;
      done.status = move_one(job, i);
      if (done.status) ++done.moved;
    }
  }
  done.job = std::move(job);
  return done;
}

void BlockMover::fetch(const MoveJob& job, MoveDone& done) {
  kv_pool::PoolClient* client = pool();
  if (client == nullptr) {
    done.status = base::fail(base::Code::kUnavailable, "the pool is away", "engine");
    return;
  }
  const ipc::SteadyClock clock;
  auto ticket = client->fetch(job.keys, clock.now() + kFetchPatience);
  if (!ticket) {
    done.status = tl::unexpected(ticket.error());
    return;
  }
  std::vector<bool> there(job.blocks.size());
  std::size_t end = job.blocks.size();  // the first that does not come: of no use are those after it
  std::vector<kv_pool::FetchTicket::Finished> finished;
  base::Nanos heard = clock.now();
  while (done.moved < end) {
    done.cancelled = cancelled();
    if (done.cancelled) return;
    finished.clear();
    base::Status came = ticket->finished(finished, kLook);
    if (came && !finished.empty()) heard = clock.now();
    if (came && clock.now() - heard > kQuiet) {
      // The store may be slow; a loader that does not answer a question either is given up.
      if (auto alive = client->stats(); !alive) came = tl::unexpected(alive.error());
      heard = clock.now();
    }
    if (!came) {
      done.status = came;
      return;
    }
    for (const auto& one : finished) {
      base::Status here = one.status;
      if (here && one.block < end) here = ticket->copy(one.block, arena_.block(job.blocks[one.block]));
      if (here) {
        there[one.block] = true;
      } else if (one.block < end) {
        end = one.block;
        done.status = here;
      }
    }
    while (done.moved < end && there[done.moved]) ++done.moved;
  }
}

base::Status BlockMover::move_one(const MoveJob& job, std::size_t i) {
  if (job.kind == MoveJob::Kind::kHandOver)
    return transport_.copy(arena_, job.blocks[i], job.target, job.segment, job.destination[i]);
  kv_pool::PoolClient* client = pool();
  if (client == nullptr) return base::fail(base::Code::kUnavailable, "the pool is away", "engine");
  return client->put(job.keys[i], arena_.block(job.blocks[i]), i == 0 ? job.parent : job.keys[i - 1]);
}

kv_pool::PoolClient* BlockMover::pool() {
  if (pool_ || pool_socket_.empty()) return pool_ ? &*pool_ : nullptr;
  const base::Nanos now = ipc::SteadyClock().now();
  if (now < next_dial_) return nullptr;
  kv_pool::ClientOptions options;
  options.block_bytes = arena_.block_bytes();
  auto client = kv_pool::PoolClient::connect(pool_socket_, base::Nanos{100'000'000}, options);
  if (!client) {
    spdlog::warn("no KV pool, computing everything: {}", base::to_string(client.error()));
    next_dial_ = now + base::Nanos{1'000'000'000};
    return nullptr;
  }
  pool_.emplace(std::move(*client));
  return &*pool_;
}

}  // namespace trimtab::engine
