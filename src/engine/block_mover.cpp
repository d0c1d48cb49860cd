#include "engine/block_mover.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "base/check.h"
#include "ipc/steady_clock.h"
#include "swap_in/measure.h"
#include "swap_in/memcpy_backend.h"

namespace trimtab::engine {

namespace {

// So often a loader that is away is asked again.
constexpr base::Nanos kAgain{20'000'000}, kDialPause{1'000'000'000};

/// What copying costs here and now. A machine that cannot tell gets the cost of a slow memory.
policy::SwapBackendCost measured_cost(swap_in::Backend& backend) {
  const std::vector<std::byte> source(1U << 20, std::byte{1});
  std::vector<std::byte> destination(1U << 20);
  auto cost = swap_in::measure(backend, source, destination);
  if (cost) return *cost;
  spdlog::warn("what swapping in costs could not be measured: {}", base::to_string(cost.error()));
  policy::SwapBackendCost assumed;
  assumed.name = backend.name();
  assumed.batch_max = backend.batch_max();
  return assumed;
}

/// `job_of`: of what the queue holds.
template <class Queue, class JobOf>
void drop(Queue& queue, JobOf job_of, model::RequestId id, std::vector<MoveJob>& dropped) {
  for (auto at = queue.begin(); at != queue.end();) {
    MoveJob& job = std::invoke(job_of, *at);
    if (job.id != id) {
      ++at;
      continue;
    }
    dropped.push_back(std::move(job));
    at = queue.erase(at);
  }
}

}  // namespace

BlockMover::BlockMover(const KvArena& arena, Transport& transport, BlockMoverOptions options, Hooks hooks)
    : arena_(arena), transport_(transport), options_(std::move(options)), hooks_(std::move(hooks)) {
  if (!options_.pool_socket.empty() && options_.layout) {
    auto backend = std::make_unique<swap_in::MemcpyBackend>();
    cost_ = measured_cost(*backend);
    swapper_ = std::make_unique<swap_in::LayerSwapper>(std::move(backend));
  }
  thread_ = std::thread([this] { run(); });
}

BlockMover::~BlockMover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    cancel_current_ = true;
    for (const Active& one : active_) one.fetch->cancel();
  }
  changed_.notify_all();
  thread_.join();
  swapper_.reset();
}

void BlockMover::submit(MoveJob job) {
  TRIMTAB_CHECK(!job.blocks.empty());
  {
    const std::lock_guard lock(mutex_);
    if (job.kind == MoveJob::Kind::kHandOver) {
      hand_overs_.push_back(std::move(job));
    } else if (job.kind == MoveJob::Kind::kStore) {
      stores_.push_back(std::move(job));
    } else {
      const base::Nanos now = ipc::SteadyClock().now(), patience = job.patience;
      fetches_.push_back({std::move(job), now, now + patience});
    }
  }
  changed_.notify_all();
}

void BlockMover::cancel(model::RequestId id) {
  std::vector<MoveJob> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (current_ == id) cancel_current_ = true;
    for (const Active& one : active_)
      if (one.fetch->job().id == id) one.fetch->cancel();
    drop(hand_overs_, std::identity{}, id, dropped);
    drop(fetches_, &Fetch::job, id, dropped);
    drop(stores_, std::identity{}, id, dropped);
  }
  for (MoveJob& job : dropped) hooks_.done({std::move(job), 0, true, {}});
}

void BlockMover::run() {
  const ipc::SteadyClock clock;
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      current_.reset();
      while (!stopping_ && !(task = next())) {
        base::Nanos first = base::kForever;
        for (const Fetch& fetch : fetches_) first = std::min(first, fetch.not_before);
        if (first == base::kForever) {
          changed_.wait(lock);
        } else {
          changed_.wait_for(lock, std::chrono::nanoseconds{(first - clock.now()).value});
        }
      }
      if (stopping_) return;
      cancel_current_ = false;
    }
    task();
  }
}

BlockMover::Task BlockMover::next() {
  const auto perform_front = [this](std::deque<MoveJob>& queue) -> Task {
    auto job = std::make_shared<MoveJob>(std::move(queue.front()));
    queue.pop_front();
    current_ = job->id;
    return [this, job] { hooks_.done(perform(std::move(*job))); };
  };
  if (!hand_overs_.empty()) return perform_front(hand_overs_);
  if (!broken_.empty()) {
    auto fetch = std::move(broken_.front());
    broken_.pop_front();
    return [this, fetch] { finish_by_block(fetch); };
  }
  const base::Nanos now = ipc::SteadyClock().now();
  const auto ready = std::find_if(fetches_.begin(), fetches_.end(),
                                  [now](const Fetch& fetch) { return fetch.not_before <= now; });
  if (ready != fetches_.end()) {
    auto fetch = std::make_shared<Fetch>(std::move(*ready));
    fetches_.erase(ready);
    current_ = fetch->job.id;
    return [this, fetch] { begin(std::move(*fetch)); };
  }
  if (!stores_.empty()) return perform_front(stores_);
  return {};
}

bool BlockMover::cancelled() {
  const std::lock_guard lock(mutex_);
  return cancel_current_;
}

MoveDone BlockMover::perform(MoveJob job) {
  MoveDone done;
  for (std::size_t i = 0; i < job.blocks.size() && done.status; ++i) {
    done.cancelled = cancelled();
    if (done.cancelled) break;
    done.status = move_one(job, i);
    if (done.status) ++done.moved;
  }
  done.job = std::move(job);
  if (done.job.report && !done.cancelled) report(done);
  return done;
}

void BlockMover::report(MoveDone& done) {
  HandOverReport& report = *done.job.report;
  report.done.handed_blocks = done.status ? done.moved : 0;
  report.said->store(true);
  hooks_.handed(report.done);
}

void BlockMover::begin(Fetch fetch) {
  const base::Nanos now = ipc::SteadyClock().now(), give_up = fetch.give_up;
  kv_pool::PoolClient* client = pool();
  auto ticket = client == nullptr ? base::Result<kv_pool::FetchTicket>(
                                        base::fail(base::Code::kUnavailable, "the pool is away", "engine"))
                                  : client->fetch(fetch.job.keys, now + options_.fetch_patience);
  if (!ticket)
    return settle({std::move(fetch.job), 0, false, tl::unexpected(ticket.error())},
                  ticket.error().code == base::Code::kUnavailable, give_up);
  const bool by_layer = swapper_ && ticket->layers() == options_.layout->spans.size() &&
                        ticket->blocks() <= client->fetch_blocks_most();
  HitFetch::Hooks hooks{hooks_.more, [this](const std::shared_ptr<HitFetch>& over, const base::Status& how) {
                          on_swap_over(over, how);
                        }};
  auto coming = std::make_shared<HitFetch>(arena_, *client, std::move(*ticket), std::move(fetch.job),
                                           options_.fetch_patience, std::move(hooks));
  {
    const std::lock_guard lock(mutex_);
    active_.push_back({coming, give_up});
    if (cancel_current_) coming->cancel();
  }
  if (by_layer) {
    begin_by_layer(coming, now);
  } else {
    finish_by_block(coming);
  }
}

void BlockMover::begin_by_layer(const std::shared_ptr<HitFetch>& fetch, base::Nanos asked) {
  const HitLayout& layout = *options_.layout;
  const auto blocks = static_cast<std::uint32_t>(fetch->job().blocks.size());
  std::vector<policy::SwapLayer> layers;
  const double compute =
      static_cast<double>(fetch->job().compute.value) / static_cast<double>(layout.spans.size());
  for (const swap_in::LayerSpan& span : layout.spans)
    layers.push_back({blocks, std::uint64_t{blocks} * span.bytes, 0, compute});
  const auto choice = policy::choose_swap(std::span(&cost_, 1), layers);
  const std::uint32_t batch = choice ? choice->batch : 1;
  const model::RequestId id = fetch->job().id;
  const std::uint64_t stay = fetch->job().stay;
  auto gate = swapper_->swap(fetch->by_layer(layout, batch));
  hooks_.coming({id, stay, std::make_shared<HitSwap>(std::move(gate), layout, blocks, cost_, batch, asked)});
}

void BlockMover::on_swap_over(const std::shared_ptr<HitFetch>& fetch, const base::Status& how) {
  {
    const std::lock_guard lock(mutex_);
    if (!how && !fetch->cancelled()) {
      broken_.push_back(fetch);
      changed_.notify_all();
      return;
    }
    std::erase_if(active_, [&](const Active& one) { return one.fetch == fetch; });
  }
  MoveDone done{fetch->job(), 0, !how, {}};
  if (how) done.moved = static_cast<std::uint32_t>(done.job.blocks.size());
  hooks_.done(std::move(done));
}

void BlockMover::finish_by_block(const std::shared_ptr<HitFetch>& fetch) {
  MoveDone done;
  fetch->copy_blocks(done);
  done.job = fetch->job();
  base::Nanos give_up;
  {
    const std::lock_guard lock(mutex_);
    const auto mine =
        std::find_if(active_.begin(), active_.end(), [&](const Active& one) { return one.fetch == fetch; });
    give_up = mine->give_up;
    active_.erase(mine);
    current_ = done.job.id;
    cancel_current_ = fetch->cancelled();
  }
  settle(std::move(done), fetch->loader_lost() && done.moved == 0, give_up);
}

void BlockMover::settle(MoveDone done, bool away, base::Nanos give_up) {
  const base::Nanos now = ipc::SteadyClock().now();
  {
    const std::lock_guard lock(mutex_);
    done.cancelled = done.cancelled || cancel_current_;
    if (away && !done.cancelled && !stopping_ && !options_.pool_socket.empty() && now + kAgain < give_up) {
      fetches_.push_back({std::move(done.job), now + kAgain, give_up});
      return;
    }
  }
  hooks_.done(std::move(done));
}

base::Status BlockMover::move_one(const MoveJob& job, std::size_t i) {
  if (job.kind == MoveJob::Kind::kHandOver)
    return transport_.copy(arena_, job.blocks[i], job.target, job.segment, job.destination[i]);
  kv_pool::PoolClient* client = pool();
  if (client == nullptr) return base::fail(base::Code::kUnavailable, "the pool is away", "engine");
  return client->put(job.keys[i], arena_.block(job.blocks[i]), i == 0 ? job.parent : job.keys[i - 1]);
}

kv_pool::PoolClient* BlockMover::pool() {
  if (pool_ || options_.pool_socket.empty()) return pool_ ? &*pool_ : nullptr;
  const base::Nanos now = ipc::SteadyClock().now();
  if (now < next_dial_) return nullptr;
  kv_pool::ClientOptions options;
  options.block_bytes = arena_.block_bytes();
  options.timeout = options_.answer_patience;
  auto client = kv_pool::PoolClient::connect(options_.pool_socket, base::Nanos{100'000'000}, options);
  if (!client) {
    spdlog::warn("no KV pool, computing everything: {}", base::to_string(client.error()));
    next_dial_ = now + kDialPause;
    return nullptr;
  }
  pool_.emplace(std::move(*client));
  return &*pool_;
}

}  // namespace trimtab::engine
