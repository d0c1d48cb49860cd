#include "apps/size_value.h"

#include <fmt/format.h>

#include <string>

namespace trimtab::apps {

CLI::Validator size_value() {
  const CLI::AsSizeValue as_size(false);
  const auto read = [as_size](std::string& text) {
    const std::string given = text;
    std::string wrong = given.find('-') == std::string::npos ? as_size(text) : "it is negative";
    if (wrong.empty() && text == "0") wrong = "it is nothing";
    return wrong.empty() ? wrong
                         : fmt::format("{}: give a size above 0, as 512M, 100G or 3T ({})", given, wrong);
  };
  return CLI::Validator(read, "SIZE [b, kb(=1024b), ...]");
}

}  // namespace trimtab::apps
