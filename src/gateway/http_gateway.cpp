#include "gateway/http_gateway.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>
#include <random>

#include "gateway/anthropic_request.h"
#include "gateway/cache_scope.h"
#include "gateway/error_response.h"
#include "gateway/json_out.h"
#include "gateway/openai_request.h"
#include "gateway/prompt_builder.h"

namespace trimtab::gateway {
namespace {

using base::Code;

constexpr base::Nanos kStartingRetry{2'000'000'000};
constexpr base::Nanos kFullRetry{1'000'000'000};
constexpr auto kTickPeriod = std::chrono::seconds(1);
// A count beyond this many contexts tells an agent nothing that "too long" does not.
constexpr std::int64_t kCountContextsMax = 16;

std::uint64_t random_seed() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

net::Response json_response(std::string body) {
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}

}  // namespace

HttpGateway::HttpGateway(boost::asio::io_context& io, cluster::Backend& backend, const base::Clock& clock,
                         obs::Registry& registry, PromptText text, GatewayOptions options)
    : io_(io),
      backend_(backend),
      clock_(clock),
      registry_(registry),
      text_(std::move(text)),
      options_(std::move(options)),
      limits_{options_.config.model.name, options_.profile.vision, options_.config.vision.images_max},
      longest_token_bytes_(longest_token_bytes(text_.tokenizer)),
      started_s_(std::time(nullptr)),
      names_(random_seed()),
      metrics_(registry),
      tick_timer_(io) {}

HttpGateway::~HttpGateway() {
  alive_.reset();
  while (!live_.empty()) {
    const auto request = live_.begin()->second;
    request->shut_down();
  }
  server_.reset();
}

base::Status HttpGateway::open() {
  text::AnswerMemory::Options memory;
  memory.path = options_.answers_path;
  auto answers = text::AnswerMemory::open(memory);
  if (!answers) return tl::unexpected(answers.error());
  answers_ = std::move(*answers);
  const std::weak_ptr<bool> alive = alive_;
  context_ = std::unique_ptr<LiveContext>(
      new LiveContext{backend_, clock_, text_.tokenizer, answers_.get(), counters_,
                      [this, alive](std::function<void()> task) {
                        boost::asio::post(io_, [alive, task = std::move(task)] {
                          if (alive.lock()) task();
                        });
                      },
                      [this](std::uint64_t live_id) { live_.erase(live_id); },
                      [this](Api api, double seconds) { metrics_.first_token(api, seconds); }});
  const model::GatewayConfig& config = options_.config.gateway;
  net::ServerOptions server;
  server.host = config.host;
  server.port = config.port;
  server.connections_max = static_cast<std::size_t>(config.connections_max);
  server.body_bytes_max = static_cast<std::uint64_t>(config.body_limit_bytes);
  auto listening = net::Server::listen(io_, server, *this);
  if (!listening) return tl::unexpected(listening.error());
  server_ = std::move(*listening);
  tick();
  return {};
}

void HttpGateway::tick() {
  const base::Nanos before = clock_.now() - options_.ping_period;
  // Writing can end a request, which changes the map: look at a copy.
  std::vector<std::shared_ptr<LiveRequest>> requests;
  for (const auto& [id, request] : live_) requests.push_back(request);
  for (const auto& request : requests) request->ping_if_silent(before);
  tick_timer_.expires_after(std::min<std::chrono::nanoseconds>(
      kTickPeriod,
      std::chrono::nanoseconds(std::max<std::int64_t>(options_.ping_period.value / 4, 1'000'000))));
  tick_timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code error) {
    if (!error && alive.lock()) tick();
  });
}

void HttpGateway::drain(base::Nanos limit, std::function<void()> done) {
  draining_ = true;
  server_->drain(limit, std::move(done));
}

std::string HttpGateway::new_name(std::string_view prefix) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string name(prefix);
  for (int i = 0; i < 24; ++i) name += kLetters[names_.below(kLetters.size())];
  return name;
}

net::Response HttpGateway::refused(Api api, const base::Error& error,
                                   std::optional<base::Nanos> retry_after) {
  auto response = error_response(api, error, retry_after, new_name("req_"));
  ++counters_.responses[{api, response.status}];
  return response;
}

net::Response HttpGateway::refuse(const net::RequestHead* head, int status, std::string_view why) {
  const Api api = head == nullptr ? Api::kOpenAi : api_of(*head);
  ++counters_.responses[{api, status}];
  std::string message(why);
  if (status == 413) message += fmt::format(" ({} bytes)", options_.config.gateway.body_limit_bytes);
  auto response = error_response(api, status, message, new_name("req_"));
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  return response;
}

/// Everything that can be refused without the body is refused here, before it is transferred or parsed.
std::optional<net::Response> HttpGateway::screen(const net::RequestHead& head) {
  const Api api = api_of(head);
  const RouteMatch match = find_route(head.path());
  if (match.route == Route::kNone)
    return refused(api,
                   {Code::kNotFound, fmt::format("nothing is served at {}", head.path().substr(0, 200)), ""});
  if (head.method == "OPTIONS") return net::Response{204, {{"Allow", std::string(match.methods)}}, ""};
  if (!allows(match.methods, head.method)) {
    ++counters_.responses[{api, 405}];
    auto response = error_response(api, 405,
                                   fmt::format("{} is not allowed for {}; use {}", head.method.substr(0, 20),
                                               head.path(), match.methods),
                                   new_name("req_"));
    response.headers.push_back({"Allow", std::string(match.methods)});
    return response;
  }
  const std::string& key = options_.config.gateway.api_key;
  if (!match.is_open && !key.empty() && !same_secret(api_key_of(head), key))
    return refused(api,
                   {Code::kUnauthenticated,
                    "the API key is missing or wrong; send it as x-api-key or Authorization: Bearer", ""});
  return match.generates ? screen_load(api) : std::nullopt;
}

std::optional<net::Response> HttpGateway::screen_load(Api api) {
  if (draining_)
    return refused(api, {Code::kUnavailable, "the server is stopping; ask again later", ""}, kStartingRetry);
  if (!has_started())
    return refused(api, {Code::kUnavailable, "the engines are starting; ask again soon", ""}, kStartingRetry);
  const std::int64_t limit = options_.config.gateway.requests_in_flight_max;
  if (static_cast<std::int64_t>(live_.size()) >= limit)
    return refused(
        api,
        {Code::kResourceExhausted,
         fmt::format("{} requests are being served, as many as are allowed at once", live_.size()), ""},
        kFullRetry);
  return std::nullopt;
}

void HttpGateway::handle(net::Request request, std::shared_ptr<net::ResponseWriter> writer) {
  const Api api = api_of(request);
  const RouteMatch match = find_route(request.path());
  if (match.generates) return generate(api, std::move(request), std::move(writer));
  net::Response response =
      match.route == Route::kCountTokens ? count_tokens(request) : answer(request, match, api);
  ++counters_.responses[{api, response.status}];
  writer->respond(std::move(response));
}

net::Response HttpGateway::answer(const net::Request& request, const RouteMatch& match, Api api) {
  switch (match.route) {
    case Route::kHealth:
      return health();
    case Route::kMetrics:
      metrics_.publish(counters_, server_->stats(), live_.size());
      return {
          200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, registry_.prometheus_text()};
    case Route::kModels:
      return models(api);
    case Route::kModel:
      return model(api, match.rest);
    case Route::kDebugStatus:
      return json_response(backend_.status());
    case Route::kDebugRequest:
      if (auto journey = backend_.journey(std::string(match.rest))) return json_response(std::move(*journey));
      return error_response(
          api, {Code::kNotFound, fmt::format("no request \"{}\" is known", match.rest.substr(0, 100)), ""},
          {}, new_name("req_"));
    case Route::kRoot:
      return {200,
              {{"Content-Type", "text/plain"}},
              "trimtab: OpenAI at /v1/chat/completions, Anthropic at /v1/messages\n"};
    default:
      return error_response(api, {Code::kNotFound, "nothing is served at " + request.target, ""}, {},
                            new_name("req_"));
  }
}

bool HttpGateway::has_started() {
  started_ = started_ || backend_.ready();
  return started_;
}

net::Response HttpGateway::health() {
  const net::Headers plain{{"Content-Type", "text/plain"}};
  if (draining_) return {503, plain, "stopping\n"};
  if (!has_started()) return {503, {plain[0], {"Retry-After", "1"}}, "starting\n"};
  return {200, plain, backend_.ready() ? "ok\n" : "ok, though not every engine is there\n"};
}

base::Result<ChatRequest> HttpGateway::parse(Api api, std::string& body, bool needs_max_tokens) {
  const auto object = parser_.parse(body);
  if (!object) return tl::unexpected(object.error());
  return api == Api::kAnthropic ? parse_anthropic(*object, limits_, needs_max_tokens)
                                : parse_openai(*object, limits_);
}

net::Response HttpGateway::count_tokens(net::Request& request) {
  auto chat = parse(Api::kAnthropic, request.body, false);
  if (!chat) return error_response(Api::kAnthropic, chat.error(), {}, new_name("req_"));
  const std::int64_t limit = options_.profile.context_limit.value * kCountContextsMax;
  ScopedAnswers answers(*answers_, chat->cache_scope);
  const auto prompt =
      build_prompt(text_, *chat, options_.profile.vision, &answers, limit, longest_token_bytes_);
  if (!prompt) return error_response(Api::kAnthropic, prompt.error(), {}, new_name("req_"));
  std::string body;
  JsonOut(body)
      .open_object()
      .field("input_tokens", static_cast<std::int64_t>(prompt->tokens.size()))
      .close_object();
  return json_response(std::move(body));
}

void HttpGateway::generate(Api api, net::Request request, std::shared_ptr<net::ResponseWriter> writer) {
  const std::string name = new_name(api == Api::kAnthropic ? "msg_" : "chatcmpl-");
  const auto started = start_request(api, name, request.body, writer);
  if (started) return;
  ++counters_.responses[{api, error_status(api, started.error().code)}];
  writer->respond(error_response(api, started.error(), {}, name));
}

base::Status HttpGateway::start_request(Api api, const std::string& name, std::string& body,
                                        const std::shared_ptr<net::ResponseWriter>& writer) {
  auto chat = parse(api, body, true);
  if (!chat) return tl::unexpected(chat.error());
  auto stops = text::StopMatcher::create(chat->stops);
  if (!stops)
    return tl::unexpected(base::Error{stops.error().code, stops.error().message,
                                      api == Api::kAnthropic ? "stop_sequences" : "stop"});
  const std::int64_t context_limit = options_.profile.context_limit.value;
  ScopedAnswers answers(*answers_, chat->cache_scope);
  auto prompt =
      build_prompt(text_, *chat, options_.profile.vision, &answers, context_limit - 1, longest_token_bytes_);
  if (!prompt) return tl::unexpected(prompt.error());
  counters_.answers_remembered += prompt->answers_remembered;
  counters_.answers_retokenized += prompt->answers_retokenized;

  const std::int64_t room = context_limit - static_cast<std::int64_t>(prompt->tokens.size());
  cluster::Submission submission;
  submission.name = name;
  submission.sampling.temperature = static_cast<float>(chat->temperature);
  submission.sampling.top_p = static_cast<float>(chat->top_p);
  submission.sampling.seed = chat->seed ? *chat->seed : names_.next();
  submission.output_limit = static_cast<std::uint32_t>(std::min(chat->output_limit.value_or(room), room));
  submission.stop_tokens = {text_.chat.turn_end};
  if (const auto eos = text_.tokenizer.eos(); eos && *eos != text_.chat.turn_end)
    submission.stop_tokens.push_back(*eos);
  submission.timeout = base::Nanos{options_.config.gateway.request_timeout_ms * 1'000'000};
  submission.tokens = std::move(prompt->tokens);
  submission.images = std::move(prompt->images);
  submission.tenant = chat->cache_scope;

  LiveSetup setup;
  setup.live_id = next_live_id_++;
  setup.api = api;
  setup.name = name;
  setup.stream = chat->stream;
  setup.remember = !chat->continues;
  setup.answer_context = prompt->context;
  setup.cache_scope = std::move(chat->cache_scope);
  setup.stop_tokens = submission.stop_tokens;
  auto words = make_answer_writer(api, name, chat->model, std::time(nullptr), chat->include_usage);
  const auto request = std::make_shared<LiveRequest>(*context_, std::move(setup), std::move(*stops),
                                                     std::move(chat->stops), std::move(words), writer);
  live_.emplace(next_live_id_ - 1, request);
  request->start(std::move(submission));
  return {};
}

base::Result<std::unique_ptr<Gateway>> Gateway::start(boost::asio::io_context& io, cluster::Backend& backend,
                                                      const base::Clock& clock, obs::Registry& registry,
                                                      PromptText text, GatewayOptions options) {
  auto gateway =
      std::make_unique<HttpGateway>(io, backend, clock, registry, std::move(text), std::move(options));
  TRIMTAB_TRY(gateway->open());
  return gateway;
}

}  // namespace trimtab::gateway
