#pragma once

#include <map>
#include <memory>

#include "kv_remote/usrbio/usrbio_io.h"
#include "kv_target/file/io_engine.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_remote {

/// The engine of a directory target on 3FS: contents of extent files move through USRBIO; everything else,
/// that is syncs and the log, goes through the engine it is put around. Files are known by their inode: a
/// descriptor's number may come back for another file, which 3FS would not notice.
class UsrbioEngine final : public kv_target::file::IoEngine {
 public:
  UsrbioEngine(std::unique_ptr<UsrbioIo> io, std::unique_ptr<kv_target::file::IoEngine> other)
      : io_(std::move(io)), other_(std::move(other)) {}

  void add(const kv_target::file::Io& io) override;
  void start() override;
  void reap(std::vector<kv_target::file::IoDone>& done) override;
  void wait() override;
  std::string describe() const override;

  /// Who is to be told that `reap` has something, besides those whom the other engine tells.
  void tell(int event_fd) { io_->tell(event_fd); }
  std::uint64_t through_usrbio() const { return through_usrbio_; }

 private:
  struct File {
    std::uint64_t device = 0, inode = 0;
    bool is_extents = false;
  };
  bool is_extents(int fd);

  std::unique_ptr<UsrbioIo> io_;
  std::unique_ptr<kv_target::file::IoEngine> other_;
  std::map<int, File> files_;
  std::vector<UsrbioIo::Done> done_;
  std::uint64_t through_usrbio_ = 0;
};

/// A directory target whose contents move through USRBIO. `options.directory` lies under
/// `usrbio.mount_point`.
base::Result<std::unique_ptr<kv_target::FileTarget>> open_on_3fs(kv_target::FileTarget::Options options,
                                                                 UsrbioOptions usrbio,
                                                                 const usrbio::Api& api);

}  // namespace trimtab::kv_remote
