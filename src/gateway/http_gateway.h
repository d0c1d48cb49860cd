#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>

#include "base/prng.h"
#include "gateway/gateway.h"
#include "gateway/gateway_metrics.h"
#include "gateway/json_in.h"
#include "gateway/live_request.h"
#include "gateway/routes.h"
#include "net/http_server.h"
#include "text/answer_memory.h"

namespace trimtab::gateway {

/// The gateway behind `Gateway`: routes, refuses, validates, and keeps the requests in flight.
class HttpGateway final : public Gateway, private net::Handler {
 public:
  HttpGateway(boost::asio::io_context& io, cluster::Backend& backend, const base::Clock& clock,
              obs::Registry& registry, PromptText text, GatewayOptions options);
  ~HttpGateway() override;

  base::Status open();
  std::uint16_t port() const override { return server_->port(); }
  std::size_t requests_in_flight() const override { return live_.size(); }
  void drain(base::Nanos limit, std::function<void()> done) override;

 private:
  std::optional<net::Response> screen(const net::RequestHead& head) override;
  void handle(net::Request request, std::shared_ptr<net::ResponseWriter> writer) override;
  net::Response refuse(const net::RequestHead* head, int status, std::string_view why) override;

  std::optional<net::Response> screen_load(Api api);
  /// True from the first time that every engine was there: when one is lost later, the others go on serving.
  bool has_started();
  net::Response refused(Api api, const base::Error& error, std::optional<base::Nanos> retry_after = {});
  net::Response answer(const net::Request& request, const RouteMatch& match, Api api);
  net::Response health();
  net::Response models(Api api) const;
  net::Response model(Api api, std::string_view name);
  net::Response count_tokens(net::Request& request);
  base::Result<ChatRequest> parse(Api api, std::string& body, bool needs_max_tokens);
  void generate(Api api, net::Request request, std::shared_ptr<net::ResponseWriter> writer);
  base::Status start_request(Api api, const std::string& name, std::string& body,
                             const std::shared_ptr<net::ResponseWriter>& writer);
  std::string new_name(std::string_view prefix);
  void tick();

  boost::asio::io_context& io_;
  cluster::Backend& backend_;
  const base::Clock& clock_;
  obs::Registry& registry_;
  PromptText text_;
  GatewayOptions options_;
  RequestLimits limits_;
  std::size_t longest_token_bytes_ = 1;
  std::int64_t started_s_ = 0;  // seconds since 1970
  base::Prng names_;
  JsonParser parser_;
  std::unique_ptr<text::AnswerMemory> answers_;
  GatewayCounters counters_;
  GatewayMetrics metrics_;
  std::unique_ptr<LiveContext> context_;
  std::map<std::uint64_t, std::shared_ptr<LiveRequest>> live_;
  std::uint64_t next_live_id_ = 1;
  bool started_ = false;
  bool draining_ = false;
  boost::asio::steady_timer tick_timer_;
  std::unique_ptr<net::Server> server_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trimtab::gateway
