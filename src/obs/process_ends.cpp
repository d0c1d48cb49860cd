#include "obs/process_ends.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>

#include "base/codec.h"
#include "base/hash.h"

namespace trimtab::obs {

namespace {

/// As the file has it; `checksum` is of all ends.
struct Form {
  std::uint64_t checksum = 0;
  std::vector<ProcessEnd> ends;
  template <class A>
  void visit(A& a) {
    a(checksum, ends);
  }
};

std::uint64_t checksum_of(const std::vector<ProcessEnd>& ends) {
  return base::checksum(base::encode(Form{0, ends}));
}

std::string path_in(const std::string& runtime_dir) { return runtime_dir + "/ends"; }

}  // namespace

std::string how_it_ended(const ProcessEnd& end) {
  std::string words = end.how;
  if (end.in_a_row > 1) words += fmt::format(", {} times in a row", end.in_a_row);
  if (!end.said.empty()) words += fmt::format("; {} says: {}", end.log, end.said);
  return words;
}

std::string to_words(const ProcessEnd& end) { return end.name + " " + how_it_ended(end); }

bool is_alarming(const ProcessEnd& end, base::Nanos now) {
  if (end.started_ns == 0) return true;
  return end.in_a_row > 1 && now - base::Nanos{end.started_ns} < kHealthyAfter;
}

void write_process_ends(const std::string& runtime_dir, const std::vector<ProcessEnd>& ends) {
  const std::string path = path_in(runtime_dir), fresh = path + ".new";
  const std::vector<std::byte> bytes = base::encode(Form{checksum_of(ends), ends});
  std::ofstream file(fresh, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  // A rename, so that nobody reads half of it.
  if (!file || std::rename(fresh.c_str(), path.c_str()) != 0) std::remove(fresh.c_str());
}

std::vector<ProcessEnd> read_process_ends(const std::string& runtime_dir) {
  std::ifstream file(path_in(runtime_dir), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto form = base::decode<Form>(std::as_bytes(std::span(text.data(), text.size())));
  if (!form || form->checksum != checksum_of(form->ends)) return {};
  return std::move(form->ends);
}

}  // namespace trimtab::obs
