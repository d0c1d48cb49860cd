#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/probe.h"
#include "config/cluster_config.h"
#include "config/profile.h"
#include "engine/logits_command.h"
#include "io/explain.h"
#include "obs/process_ends.h"
#include "text/tokenize_command.h"

namespace trimtab::apps {

namespace {

void exit_with(int code) {
  if (code != 0) throw CLI::RuntimeError(code);
}

void add_config(CLI::App& app) {
  auto options = std::make_shared<InstanceOptions>();
  CLI::App* command =
      app.add_subcommand("config", "check a configuration and print all of it, with every key's meaning");
  add_instance_options(*command, *options);
  command->callback([options] {
    auto instance = load_instance(*options, /*needs_model=*/false);
    if (!instance) return finish(tl::unexpected(instance.error()));
    std::cout << config::cluster_config_toml(instance->config);
  });
}

void add_tokenize(CLI::App& app) {
  auto model = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("tokenize", "JSON lines on standard input to token ids, and back (docs/text.md)");
  command->add_option("--model", *model, "GGUF file")->required();
  command->callback([model] { exit_with(text::tokenize_command(*model, std::cin, std::cout, std::cerr)); });
}

void add_logits(CLI::App& app) {
  auto options = std::make_shared<engine::LogitsOptions>();
  options->tokens_path = "-";
  CLI::App* command =
      app.add_subcommand("logits", "the reference engine's logits for given tokens, in one process");
  command->add_option("--model", options->model_path, "GGUF file")->required();
  command
      ->add_option("--tokens", options->tokens_path, "file with a JSON array of ids; - reads standard input")
      ->capture_default_str();
  command->add_option("--out", options->out_path, "raw little-endian f32 [rows][vocabulary]");
  command->add_flag("--all", options->all_positions, "a row for every token instead of the last one only");
  command->add_option("--top", options->top, "printed for the last token")->capture_default_str();
  command
      ->add_option("--chunk-tokens", options->chunk_tokens, "tokens computed at a time; never changes a bit")
      ->capture_default_str();
  command->add_flag("--f32-cache", options->f32_cache,
                    "keys and values unrounded, instead of the f16 that ranks keep");
  command->add_option("--ffn-experts", options->ffn_experts, "fixed parts of the FFN")->capture_default_str();
  command->callback([options] { exit_with(engine::logits_command(*options)); });
}

}  // namespace

void add_tools(CLI::App& app) {
  add_config(app);
  add_tokenize(app);
  add_logits(app);
}

void add_explain(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    std::string id;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("explain", "a request's journey from the decision log: every decision and why");
  add_instance_options(*command, options->instance);
  command
      ->add_option("request", options->id, "the id that the client got (msg_..., chatcmpl-...) or the number")
      ->required();
  command->add_flag("--json", options->json, "for programs");
  command->callback([options] {
    auto instance = load_instance(options->instance, /*needs_model=*/false);
    if (!instance) return finish(tl::unexpected(instance.error()));
    exit_with(io::explain_command(instance->state_dir + "/decisions", options->id, options->json, std::cout,
                                  std::cerr));
  });

  auto status = std::make_shared<InstanceOptions>();
  CLI::App* show = app.add_subcommand(
      "status", "the running cluster: engines, ranks, tiers, encoders, pool, what ended and why (JSON)");
  add_instance_options(*show, *status);
  show->callback([status] {
    auto instance = load_instance(*status, /*needs_model=*/false);
    if (!instance) return finish(tl::unexpected(instance.error()));
    const model::GatewayConfig& gateway = instance->config.gateway;
    const HttpAnswer answer = http_get(gateway.host, gateway.port, "/debug/status");
    if (answer.status != 200) {
      std::string why = "is `trimtab serve` running there?";
      for (const obs::ProcessEnd& end : obs::read_process_ends(instance->runtime_dir))
        if (end.name == "gateway") why = obs::to_words(end);
      return finish(base::fail(base::Code::kUnavailable,
                               fmt::format("nothing answers at http://{}:{} (status {}); {}", gateway.host,
                                           gateway.port, answer.status, why),
                               "status"));
    }
    std::cout << answer.body << "\n";
  });
}

}  // namespace trimtab::apps
