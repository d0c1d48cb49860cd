#include "obs/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>

namespace trimtab::obs {

void start_log(const std::string& who) {
  auto logger = std::make_shared<spdlog::logger>(who, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ [%n] %v");
  const char* level = std::getenv("TRIMTAB_LOG");
  logger->set_level(spdlog::level::from_str(level == nullptr ? "info" : level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace trimtab::obs
