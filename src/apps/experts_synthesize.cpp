#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_inputs.h"
#include "experts_eval/synthetic_loads.h"
#include "io/npy.h"
#include "io/npz.h"

namespace trimtab::apps {

namespace {

struct SynthesizeCommand {
  experts_eval::SyntheticConfig config;
  std::int32_t ep_size = 0, tokens_per_rank = 256;
  std::optional<double> zipf;
  std::string output;
};

base::Status run(SynthesizeCommand command) {
  experts_eval::SyntheticConfig& config = command.config;
  if (!command.output.ends_with(".npz")) {
    return wrong(fmt::format("--output {}: end the name in .npz", command.output));
  }
  if (command.ep_size < 0 || command.tokens_per_rank < 1 || command.ep_size > 65'536 ||
      command.tokens_per_rank > 65'536) {
    return wrong(fmt::format("--ep-size {} and --tokens-per-rank {}: give positive numbers up to 65536",
                             command.ep_size, command.tokens_per_rank));
  }
  if (command.ep_size > 0) {
    const std::int64_t tokens = static_cast<std::int64_t>(command.ep_size) * command.tokens_per_rank;
    if (tokens > (1 << 30)) return wrong(fmt::format("{} tokens a step are more than 2^30", tokens));
    config.tokens = static_cast<std::int32_t>(tokens);
  }
  config.zipf = command.zipf;
  const std::int64_t shape[] = {config.steps, config.layers, config.experts};
  const auto count = io::element_count(shape, io::kExpertElementsMax);
  if (!count) return tl::unexpected(count.error());
  const auto loads = experts_eval::generate(config);
  if (!loads) return tl::unexpected(loads.error());
  TRIMTAB_TRY(io::write_zip(
      command.output,
      {{"logical_count.npy", io::npy_bytes(shape, std::span<const std::int32_t>(loads->counts))}}));
  std::cout << fmt::format(
      "wrote {}: logical_count [{}, {}, {}] (steps, layers, experts), {} tokens a step, top-{}\n",
      command.output, config.steps, config.layers, config.experts, config.tokens, config.top_k);
  return {};
}

}  // namespace

void add_experts_synthesize(CLI::App& experts) {
  auto options = std::make_shared<SynthesizeCommand>();
  options->config.layers = 4;
  CLI::App* command = experts.add_subcommand(
      "synthesize", "write loads with skew, drift and bursts, to try everything without a cluster");
  auto& config = options->config;
  command->add_option("--experts", config.experts, "logical experts")->capture_default_str();
  command->add_option("--layers", config.layers, "MoE layers")->capture_default_str();
  command->add_option("--steps", config.steps, "forward passes")->capture_default_str();
  command->add_option("--top-k", config.top_k, "experts that a token visits")->capture_default_str();
  command->add_option("--ep-size,--ep", options->ep_size,
                      "ranks; tokens a step are this x --tokens-per-rank");
  command->add_option("--tokens-per-rank", options->tokens_per_rank, "per step")->capture_default_str();
  command->add_option("--tokens", config.tokens, "tokens of the group per step, without --ep-size")
      ->capture_default_str();
  command->add_option("--sigma", config.sigma, "skew: lognormal popularity")->capture_default_str();
  command->add_option("--zipf", options->zipf, "skew: Zipf exponent, in place of --sigma");
  command->add_option("--drift", config.drift, "how fast popularity wanders, per step")
      ->capture_default_str();
  command->add_option("--seed", config.seed, "the same seed gives the same file")->capture_default_str();
  command->add_option("--output,-o", options->output, "the .npz file")->required();
  command->footer(
      "Example:\n"
      "  trimtab experts synthesize --experts 384 --layers 4 --ep-size 8 --output loads.npz\n"
      "  trimtab experts plan loads.npz --ep-size 8 --num-redundant-experts 32");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
