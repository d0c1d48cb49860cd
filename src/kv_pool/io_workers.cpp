#include "kv_pool/io_workers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace trimtab::kv_pool {

IoWorkers::IoWorkers(FileTier& tier) : tier_(tier), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TRIMTAB_CHECK(wake_.get() >= 0, "no eventfd");
  reader_ = std::thread([this] { run_loads(); });
  writer_ = std::thread([this] { run_stores(); });
}

IoWorkers::~IoWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  reader_.join();
  writer_.join();
}

void IoWorkers::load(LoadJob job) {
  {
    const std::lock_guard lock(mutex_);
    loads_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void IoWorkers::store(StoreJob job) {
  {
    const std::lock_guard lock(mutex_);
    stores_.push_back(std::move(job));
  }
  changed_.notify_all();
}

std::vector<LoadDone> IoWorkers::take_loads() {
  const std::lock_guard lock(mutex_);
  return std::exchange(loads_done_, {});
}

std::vector<StoreDone> IoWorkers::take_stores() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stores_done_, {});
}

void IoWorkers::announce() {
  const std::uint64_t one = 1;
  // A full counter is as good as a written one: the reader of the descriptor wakes either way.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void IoWorkers::run_loads() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !loads_.empty(); });
    if (stop_) return;
    LoadJob job = std::move(loads_.front());
    loads_.pop_front();
    lock.unlock();
    LoadDone done = do_load(std::move(job));
    lock.lock();
    loads_done_.push_back(std::move(done));
    announce();
  }
}

void IoWorkers::run_stores() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !stores_.empty(); });
    if (stop_) return;
    StoreJob job = std::move(stores_.front());
    stores_.pop_front();
    lock.unlock();
    StoreDone done = do_store(std::move(job));
    lock.lock();
    stores_done_.push_back(std::move(done));
    announce();
  }
}

LoadDone IoWorkers::do_load(LoadJob job) {
  LoadDone done{std::move(job), IoOutcome::kDone, {}};
  if (auto read = tier_.read(done.job.entry.slot, done.job.destination); !read) {
    done.outcome = IoOutcome::kFailed;
    done.message = read.error().message;
  } else if (content_checksum(done.job.entry.key, done.job.destination) != done.job.entry.checksum) {
    done.outcome = IoOutcome::kCorrupt;
  }
  return done;
}

StoreDone IoWorkers::do_store(StoreJob job) {
  StoreDone done{std::move(job), false, {}};
  std::vector<FileTier::Store> stores;
  for (StoreJob::Item& item : done.job.items) {
    item.corrupt = content_checksum(item.entry.key, item.content) != item.entry.checksum;
    if (!item.corrupt) stores.push_back({item.entry, item.content});
  }
  if (auto written = tier_.write(done.job.erased, stores); !written) {
    done.failed = true;
    done.message = written.error().message;
  }
  return done;
}

}  // namespace trimtab::kv_pool
