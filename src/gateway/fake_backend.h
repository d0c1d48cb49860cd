#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cluster/backend.h"
#include "gateway/prompt_text.h"

namespace trimtab::gateway {

struct FakeOptions {
  base::Nanos first_token{0};                      // from acceptance to the first token
  base::Nanos step{0};                             // between tokens; 0: as fast as the event loop turns
  std::int32_t turn_start = -1;                    // <|im_start|>, to find the last turn
  std::size_t turn_head_tokens = 0;                // of \"user\n\", which follows it
  std::optional<std::uint32_t> fail_after_tokens;  // the engine "dies" after this many
  std::optional<base::Error> refuse;               // every submission is refused with this
  std::optional<base::Nanos> retry_after;          // of `refuse`
  bool is_ready = true;
};

/// Options whose turn marks are those of the model.
FakeOptions fake_options(const PromptText& text);

/// A stand-in for the serving system that echoes the last turn of the prompt token by token, at a chosen
/// pace, and counts prefix hits as the pool would. Deterministic: no random numbers, requests advance in the
/// order of their ids. It is a tool to load-test the gateway and its clients without engines
/// (`trimtab gateway --fake-engine`), not an engine.
class FakeBackend final : public cluster::Backend {
 public:
  FakeBackend(boost::asio::io_context& io, FakeOptions options);
  ~FakeBackend() override;

  model::RequestId submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink) override;
  void cancel(model::RequestId id) override;
  std::optional<std::string> journey(const std::string& name) override;
  std::string status() override;
  bool ready() override { return options_.is_ready; }

  FakeOptions& options() { return options_; }
  std::size_t running() const { return running_.size(); }
  std::uint64_t cancelled_total() const { return cancelled_total_; }
  std::uint64_t submitted_total() const { return next_id_ - 1; }
  /// The latest submission: for tests that look at what the gateway made of a request.
  const cluster::Submission& last_submission() const { return last_; }

 private:
  struct Running {
    std::shared_ptr<cluster::Sink> sink;
    std::uint64_t root = 0;  // where the chain of its blocks starts: the tenant's
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> answer;  // with the stop token, if it fits
    std::size_t sent = 0;
    std::uint32_t hit_tokens = 0;
    model::FinishReason reason = model::FinishReason::kStop;
    std::int64_t due_ns = 0;
    bool accepted = false;
  };
  struct Journey {
    std::string name;
    std::uint64_t id = 0;
    std::size_t prompt_tokens = 0, hit_tokens = 0, output_tokens = 0;
    std::string state;
  };

  std::vector<std::int32_t> echo(const cluster::Submission& submission) const;
  std::uint32_t hit_tokens(std::uint64_t root, const std::vector<std::int32_t>& prompt) const;
  void remember_blocks(std::uint64_t root, const std::vector<std::int32_t>& tokens);
  void schedule();
  void step();
  void advance(std::uint64_t id, Running& request);
  void end(std::uint64_t id, const std::string& state);
  Journey* find_journey(std::uint64_t id);

  boost::asio::io_context& io_;
  FakeOptions options_;
  boost::asio::steady_timer timer_;
  bool scheduled_ = false;
  std::uint64_t next_id_ = 1;
  std::uint64_t cancelled_total_ = 0;
  std::map<std::uint64_t, Running> running_;
  std::set<std::uint64_t> blocks_;  // chained hashes of the full blocks seen
  std::deque<Journey> journeys_;
  cluster::Submission last_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trimtab::gateway
