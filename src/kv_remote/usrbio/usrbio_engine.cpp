#include "kv_remote/usrbio/usrbio_engine.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string_view>

namespace trimtab::kv_remote {

using kv_target::file::Io;
using kv_target::file::IoDone;
using kv_target::file::IoEngine;

bool UsrbioEngine::is_extents(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  File& file = files_[fd];
  if (file.inode == status.st_ino && file.device == status.st_dev) return file.is_extents;
  io_->deregister_file(fd);  // of the file that had this number before
  file = {status.st_dev, status.st_ino, false};
  std::array<char, 4'096> path{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  const std::string_view name(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const auto slash = name.rfind('/');
  // A file that 3FS refuses goes the ordinary way.
  file.is_extents = slash != std::string_view::npos && name.substr(slash + 1).starts_with("extents.") &&
                    io_->register_file(fd).has_value();
  return file.is_extents;
}

void UsrbioEngine::add(const Io& io) {
  if (io.kind == Io::Kind::kSync || !is_extents(io.fd)) return other_->add(io);
  ++through_usrbio_;
  io_->add({io.kind == Io::Kind::kRead, io.fd, io.memory, io.bytes, io.offset, io.token});
}

void UsrbioEngine::start() {
  other_->start();
  io_->start();
}

void UsrbioEngine::reap(std::vector<IoDone>& done) {
  other_->reap(done);
  done_.clear();
  io_->reap(done_);
  for (const UsrbioIo::Done& one : done_) done.push_back({one.token, one.result});
}

/// What is with USRBIO ends of itself, so waiting for that alone is enough while there is any.
void UsrbioEngine::wait() {
  start();
  if (io_->under_way() > 0)
    io_->wait();
  else
    other_->wait();
}

std::string UsrbioEngine::describe() const { return "3FS USRBIO; log: " + other_->describe(); }

base::Result<std::unique_ptr<kv_target::FileTarget>> open_on_3fs(kv_target::FileTarget::Options options,
                                                                 UsrbioOptions usrbio,
                                                                 const usrbio::Api& api) {
  auto io = UsrbioIo::open(std::move(usrbio), api);
  if (!io) return tl::unexpected<base::Error>(io.error());
  UsrbioEngine* engine = nullptr;
  options.wrap_engine = [&](std::unique_ptr<IoEngine> other) {
    auto made = std::make_unique<UsrbioEngine>(std::move(*io), std::move(other));
    engine = made.get();
    return made;
  };
  auto target = kv_target::FileTarget::open(std::move(options));
  // While it opens, it waits; from here on it is told.
  if (target) engine->tell((*target)->wake_fd());
  return target;
}

}  // namespace trimtab::kv_remote
