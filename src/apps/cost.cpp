#include <fmt/format.h>
#include <sys/utsname.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "config/profile.h"
#include "io/step_log.h"
#include "policy/cost/fit.h"

namespace trimtab::apps {

namespace {

struct FitOptions {
  std::string steps_path, output_path, machine;
  double error_percent_max = 10, outlier_percent_max = 25;
};

constexpr const char* kFitHelp =
    "Fits what a prefill step costs (fixed + token * q + pair * q * (c + q/2)) to measured steps, and "
    "refuses "
    "a fit that production should not trust.\n"
    "\n"
    "STEPS is one of\n"
    "  STATE_DIR/decisions   the decision log of a cluster that served (the reference engine's step times)\n"
    "  steps.jsonl           one step a line: {\"actual_ms\": 41.5, \"chunks\": [{\"tokens\": 512, "
    "\"computed\": 4096}]}\n"
    "  steps.csv             header step,tokens,computed,actual_ms; rows of one step are its chunks\n"
    "`tokens` were computed in the step, `computed` tokens of the same request came before them (earlier "
    "chunks or a cache hit); the time is that of the whole step, in _ns, _us, _ms or _s.\n"
    "\n"
    "Record short and long chunks, and short and long contexts, on an otherwise idle machine. Every fifth "
    "step is held out to measure the error; steps that something else slowed are recognised and left out.\n"
    "\n"
    "Use the result as it is (`calibration.toml` in the state directory replaces the profile's cost), or "
    "put both its tables into profiles/NAME.toml in place of the [cost] there.";

std::string machine_name() {
  utsname name{};
  return uname(&name) == 0 ? fmt::format("{} {}", name.nodename, name.machine) : "unknown machine";
}

base::Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return base::fail(base::Code::kIo, fmt::format("cannot write {}", path), "cost fit");
  return {};
}

base::Status fit(const FitOptions& options) {
  if (std::isnan(options.error_percent_max) || std::isnan(options.outlier_percent_max)) {
    return base::fail(base::Code::kInvalidArgument,
                      "--error-max and --outliers-max are numbers of percent, not nan", "cost fit");
  }
  auto log = io::read_step_log(options.steps_path);
  if (!log) return tl::unexpected(log.error());
  if (log->last_line_torn)
    std::cerr << fmt::format("{}: the end is cut short; its last entry is left out\n", options.steps_path);
  if (log->steps_partial > 0) {
    std::cerr << fmt::format(
        "{}: {} steps are left out, since the log lacks some of their chunks (it is a sample, or requests "
        "were cancelled)\n",
        options.steps_path, log->steps_partial);
  }
  policy::FitLimits limits;
  limits.held_out_error_max = options.error_percent_max / 100;
  limits.outlier_ratio_max = options.outlier_percent_max / 100;
  const auto fitted = policy::fit_checked(log->steps, limits);
  if (!fitted) {
    return base::fail(fitted.error().code, fmt::format("{}: {}", options.steps_path, fitted.error().message),
                      "cost fit");
  }
  const model::QuadraticCost& cost = fitted->cost;
  const std::string toml =
      config::cost_toml(cost, {options.machine.empty() ? machine_name() : options.machine,
                               static_cast<std::int64_t>(fitted->samples), fitted->error_ratio_mean,
                               fitted->error_ratio_worst});
  std::ostream& notes = options.output_path == "-" ? std::cerr : std::cout;
  notes << fmt::format(
      "{} steps of {} shapes, {} outliers left out\n"
      "fixed {:.3f} ms a step, token {:.3f} us, pair {:.3f} ns\n"
      "error {:.2f} % in the mean on {} steps held out, {} of them outliers ({:.2f} % at the 90th percentile "
      "of "
      "all)\n",
      fitted->samples, fitted->shapes, fitted->outliers, static_cast<double>(cost.fixed_ns) * 1e-6,
      static_cast<double>(cost.token_ps) * 1e-6, static_cast<double>(cost.pair_ps) * 1e-3,
      100 * fitted->held_out_error_ratio_mean, fitted->held_out, fitted->held_out_outliers,
      100 * fitted->held_out_error_ratio_p90);
  if (options.output_path == "-") {
    std::cout << toml;
    return {};
  }
  TRIMTAB_TRY(write_file(options.output_path, toml));
  notes << "wrote " << options.output_path << "\n";
  return {};
}

}  // namespace

void add_cost(CLI::App& app) {
  CLI::App* cost = app.add_subcommand("cost", "what prefill steps cost: `trimtab cost fit`");
  cost->require_subcommand(1);
  auto options = std::make_shared<FitOptions>();
  CLI::App* command = cost->add_subcommand("fit", kFitHelp);
  command->add_option("steps", options->steps_path, "decision log directory, .jsonl or .csv")->required();
  command->add_option("--output", options->output_path, "TOML file to write; - prints it")->required();
  command->add_option("--machine", options->machine,
                      "what was measured, for the reader; by default this host");
  command
      ->add_option("--error-max", options->error_percent_max,
                   "refuse beyond this mean error on held-out steps, %")
      ->check(CLI::Range(0.1, 100.0))
      ->capture_default_str();
  command
      ->add_option("--outliers-max", options->outlier_percent_max, "refuse beyond this share of outliers, %")
      ->check(CLI::Range(0.0, 50.0))
      ->capture_default_str();
  command->callback([options] { finish(fit(*options)); });
}

}  // namespace trimtab::apps
