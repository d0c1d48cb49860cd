#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kv_target/file/io_engine.h"

namespace trimtab::kv_target::file::testing {

/// Looks at every operation first: what `before` answers is its result, and it is not carried out.
class WrappedEngine final : public IoEngine {
 public:
  using Before = std::function<std::optional<std::int64_t>(const Io&)>;
  WrappedEngine(std::unique_ptr<IoEngine> inner, Before before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  void add(const Io& io) override {
    if (const auto result = before_(io))
      refused_.push_back({io.token, *result});
    else
      inner_->add(io);
  }
  void start() override { inner_->start(); }
  void reap(std::vector<IoDone>& done) override {
    inner_->reap(done);
    done.insert(done.end(), refused_.begin(), refused_.end());
    refused_.clear();
  }
  void wait() override {
    if (refused_.empty()) inner_->wait();
  }
  std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<IoEngine> inner_;
  Before before_;
  std::vector<IoDone> refused_;
};

/// Which file an operation is on: "log", "log.new", "extents.000000".
inline std::string file_of(const Io& io) {
  char name[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(io.fd);
  const ssize_t length = readlink(link.c_str(), name, sizeof name);
  const std::string path(name, static_cast<std::size_t>(length < 0 ? 0 : length));
  return path.substr(path.rfind('/') + 1);
}

}  // namespace trimtab::kv_target::file::testing
