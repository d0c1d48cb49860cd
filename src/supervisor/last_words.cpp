#include "supervisor/last_words.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace trimtab::supervisor {

namespace {

constexpr std::uint64_t kTail = 8'192;
constexpr std::size_t kMost = 500;
constexpr const char* kError = "trimtab: ";  // apps::finish

}  // namespace

std::string last_words(const std::string& log, std::uint64_t begin) {
  std::ifstream file(log, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto end = static_cast<std::uint64_t>(std::max<std::streamoff>(0, file.tellg()));
  if (end <= begin) return {};
  file.seekg(static_cast<std::streamoff>(std::max(begin, end - std::min(end, kTail))));
  std::string words, error;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && static_cast<unsigned char>(line.back()) <= ' ') line.pop_back();
    if (!line.empty()) words = line;
    if (line.starts_with(kError)) error = line.substr(std::string(kError).size());
  }
  if (!error.empty()) words = std::move(error);
  if (words.size() > kMost) words.resize(kMost);
  std::replace_if(
      words.begin(), words.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return words;
}

}  // namespace trimtab::supervisor
