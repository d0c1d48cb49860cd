#include "io/decision_log.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/hash.h"

namespace trimtab::io {

namespace {

constexpr std::size_t kFlushBytes = 256UL << 10;

std::optional<RequestId> as_number(const std::string& text) {
  RequestId id;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id.value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return id;
}

base::Error no_log(const std::string& directory) {
  return {
      base::Code::kNotFound,
      fmt::format("there is no decision log in {}: is that the state directory of a cluster that has run?",
                  directory),
      "io"};
}

/// Both files as one moment: a rotation between the two reads would show one of them twice.
base::Result<std::vector<std::vector<std::byte>>> read_both(const std::string& directory) {
  const auto identity = [&]() -> ino_t {
    struct stat info {};
    return ::stat(log_path(directory).c_str(), &info) == 0 ? info.st_ino : 0;
  };
  constexpr int kTriesMax = 3;
  for (int i = 0;; ++i) {
    const ino_t before = identity();
    std::vector<std::vector<std::byte>> files;
    for (const std::string& path : {older_log_path(directory), log_path(directory)}) {
      auto bytes = read_file(path);
      if (bytes) {
        files.push_back(std::move(*bytes));
      } else if (bytes.error().code != base::Code::kNotFound) {
        return tl::unexpected(bytes.error());
      }
    }
    if (identity() == before || i == kTriesMax) {
      if (files.empty()) return tl::unexpected(no_log(directory));
      return files;
    }
  }
}

/// Enumerations come raw from the file, and tables are indexed by them.
struct Known {
  static bool check(model::Role role) { return role <= model::Role::kVision; }
  static bool check(base::Code code) { return code <= base::Code::kInternal; }
  static bool check(model::FinishReason reason) { return reason <= model::FinishReason::kLength; }

  bool operator()(const cluster::Record& record) const { return std::visit(*this, record.body); }
  bool operator()(const cluster::RequeueRecord& r) const { return check(r.from.role); }
  bool operator()(const cluster::MembershipRecord& r) const { return check(r.place.role); }
  bool operator()(const cluster::FinishedRecord& r) const { return check(r.finish); }
  bool operator()(const cluster::FailedRecord& r) const { return check(r.code); }
  bool operator()(const TokenEntry& e) const { return check(e.from.role); }
  template <class Other>
  bool operator()(const Other&) const {
    return true;
  }
};

}  // namespace

base::Result<Entry> decode_entry(std::span<const std::byte> payload) {
  auto entry = base::decode<Entry>(payload);
  if (entry && !std::visit(Known{}, entry->body))
    return base::fail(base::Code::kDataLoss, "a value that this version does not know", "io");
  return entry;
}

std::string log_path(const std::string& directory) { return directory + "/decisions.log"; }
std::string older_log_path(const std::string& directory) { return directory + "/decisions.1.log"; }

DecisionLog::DecisionLog(DecisionLogOptions options, RecordFile file)
    : options_(std::move(options)), file_(std::move(file)), torn_bytes_cut_(file_.torn_bytes_cut()) {}

base::Result<DecisionLog> DecisionLog::open(DecisionLogOptions options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot make the directory {} of the decision log: {}", options.directory,
                                  error.message()),
                      "io");
  }
  auto file = RecordFile::open(log_path(options.directory));
  if (!file) return tl::unexpected(file.error());
  return DecisionLog(std::move(options), std::move(*file));
}

bool DecisionLog::sampled(RequestId id) const {
  if (id.value == 0 || options_.sample_ratio >= 1.0) return true;
  constexpr double kRange = 9007199254740992.0;  // 2^53: exact in a double
  const std::uint64_t hash = base::mix(0x7472696d746162, id.value) >> 11;
  return static_cast<double>(hash) < options_.sample_ratio * kRange;
}

void DecisionLog::append(const Entry& entry) {
  if (!sampled(entry.request())) return;
  file_.append(base::encode(entry));
  if (file_.buffered_bytes() >= kFlushBytes) (void)flush();  // what is refused is counted in dropped_bytes
}

base::Status DecisionLog::flush() {
  TRIMTAB_TRY(file_.flush());
  if (file_.bytes() > options_.file_bytes_max) return rotate();
  return {};
}

base::Status DecisionLog::rotate() {
  const std::string path = log_path(options_.directory);
  if (std::rename(path.c_str(), older_log_path(options_.directory).c_str()) != 0) {
    return base::fail(base::Code::kIo, fmt::format("cannot rotate {}: {}", path, std::strerror(errno)), "io");
  }
  auto fresh = RecordFile::open(path);
  if (!fresh) return tl::unexpected(fresh.error());  // writing goes on into the renamed file
  dropped_bytes_ += file_.dropped_bytes();
  file_ = std::move(*fresh);
  return {};
}

base::Result<LogScan> read_log(const std::string& directory, const std::function<void(const Entry&)>& visit) {
  const auto files = read_both(directory);
  if (!files) return tl::unexpected(files.error());
  LogScan scan;
  for (const auto& bytes : *files) {
    const auto found = scan_records(bytes, [&](std::span<const std::byte> payload) {
      const auto entry = decode_entry(payload);
      if (!entry) {
        ++scan.undecodable;
        return;
      }
      ++scan.entries;
      visit(*entry);
    });
    if (!found) return tl::unexpected(found.error());
    scan.bytes_torn += found->bytes_torn;
  }
  return scan;
}

base::Result<std::optional<LoggedRequest>> find_request(const std::string& directory,
                                                        const std::string& name_or_id) {
  // One pass over the bytes for the name, one for the entries: the log is bounded, requests are many.
  std::optional<RequestId> wanted;
  auto scan = read_log(directory, [&](const Entry& entry) {
    const auto* name = std::get_if<NameEntry>(&entry.body);
    if (name != nullptr && name->name == name_or_id) wanted = name->request;
  });
  if (!scan) return tl::unexpected(scan.error());
  if (!wanted) wanted = as_number(name_or_id);
  if (!wanted || wanted->value == 0) return std::optional<LoggedRequest>{};
  LoggedRequest request;
  request.id = *wanted;
  scan = read_log(directory, [&](const Entry& entry) {
    if (entry.request() != *wanted) return;
    if (const auto* name = std::get_if<NameEntry>(&entry.body)) request.name = name->name;
    request.entries.push_back(entry);
  });
  if (!scan) return tl::unexpected(scan.error());
  if (request.entries.empty()) return std::optional<LoggedRequest>{};
  request.scan = *scan;
  return std::optional<LoggedRequest>{std::move(request)};
}

}  // namespace trimtab::io
