#include "io/logged_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "io/trace_lines.h"
#include "model/profile.h"

namespace trimtab::io {
namespace {

constexpr Nanos kClockJump{1'000'000'000};  // the offset to the calendar moves this much only by a restart

/// Checksums find accidents, not liars: times and lengths that no log has must not overflow sums.
constexpr bool plausible(std::int64_t time_ns) { return time_ns >= 0 && time_ns < std::int64_t{1} << 61U; }
constexpr bool plausible_request(std::int64_t prompt, std::int64_t output) {
  return prompt >= 1 && prompt <= kTraceTokensMax && output <= kTraceTokensMax;
}

/// What is known of a request that has not ended.
struct OpenRequest {
  Nanos at;  // submitted
  std::int64_t prompt = 0, hit = -1;
  std::map<std::uint32_t, std::uint32_t> image_tokens;  // by number
};

struct DoneRequest {
  std::int64_t unix_ns = 0;  // submitted
  std::int64_t prompt = 0, output = 0, hit = 0;
  std::vector<std::uint32_t> image_tokens;
};

/// Finds whose blocks a hit may have been: see LoggedTrace.
class Donors {
 public:
  /// Index of the request, or -1.
  std::int64_t find(std::int64_t blocks) const {
    if (const auto exact = ends_.find(blocks); exact != ends_.end()) return exact->second;
    const auto long_enough = latest_.lower_bound(blocks);
    return long_enough == latest_.end() ? -1 : long_enough->second;
  }
  /// Requests are added in the order they were submitted.
  void add(std::int64_t index, std::int64_t prompt_blocks, std::int64_t all_blocks) {
    ends_[prompt_blocks] = index;
    ends_[all_blocks] = index;
    latest_.erase(latest_.begin(), latest_.upper_bound(all_blocks));
    latest_[all_blocks] = index;
  }

 private:
  std::map<std::int64_t, std::int64_t> ends_;
  std::map<std::int64_t, std::int64_t> latest_;  // longer ones are older: shorter and older ones never win
};

/// The first `blocks` of another request's runs, then new ids up to `total`.
void append_runs(model::Trace& trace, model::TraceRequest& request, const model::TraceRequest* donor,
                 std::int64_t blocks, std::int64_t total, std::uint64_t& fresh) {
  request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
  std::int64_t left = donor == nullptr ? 0 : blocks;
  for (std::uint32_t r = 0; left > 0 && r < donor->runs_count; ++r) {
    model::BlockRun run = trace.runs[donor->runs_begin + r];
    run.count = static_cast<std::uint32_t>(std::min<std::int64_t>(run.count, left));
    left -= run.count;
    trace.runs.push_back(run);
  }
  const std::int64_t own = total - (donor == nullptr ? 0 : blocks - left);
  if (own > 0) {
    trace.runs.push_back({fresh, static_cast<std::uint32_t>(own)});
    fresh += static_cast<std::uint64_t>(own);
  }
  request.runs_count = static_cast<std::uint32_t>(trace.runs.size()) - request.runs_begin;
}

}  // namespace

struct LoggedTrace::State {
  std::unordered_map<std::uint64_t, OpenRequest> open;  // only looked up
  std::vector<DoneRequest> done;
  std::int64_t unix_offset_ns = 0;
  bool has_offset = false;
  std::int64_t failed = 0;

  void name(const NameEntry& entry) {
    if (!plausible(entry.at.value) || !plausible(entry.unix_ns)) return;
    const std::int64_t offset = entry.unix_ns - entry.at.value;
    if (has_offset && std::abs(offset - unix_offset_ns) < kClockJump.value) return;
    unix_offset_ns = offset;
    has_offset = true;
  }

  void end(model::RequestId id, std::int64_t prompt, std::int64_t hit, std::int64_t output) {
    const auto found = open.find(id.value);
    if (found == open.end()) return;  // its begin was rotated away
    OpenRequest& request = found->second;
    DoneRequest ended{request.at.value + unix_offset_ns,
                      prompt > 0 ? prompt : request.prompt,
                      std::max<std::int64_t>(output, 1),
                      request.hit >= 0 ? request.hit : hit,
                      {}};
    for (const auto& [number, tokens] : request.image_tokens) ended.image_tokens.push_back(tokens);
    done.push_back(std::move(ended));
    open.erase(found);
  }

  void record(const cluster::Record& entry) {
    if (!plausible(entry.at.value)) return;
    if (const auto* submitted = std::get_if<cluster::SubmittedRecord>(&entry.body)) {
      open[entry.request.value] = {entry.at, submitted->prompt.value, -1, {}};
    } else if (const auto* match = std::get_if<cluster::MatchRecord>(&entry.body)) {
      // The first match only: later ones, after a preemption, hit what the request itself stored.
      const auto found = open.find(entry.request.value);
      if (found != open.end() && found->second.hit < 0) found->second.hit = match->hit.value;
    } else if (const auto* finished = std::get_if<cluster::FinishedRecord>(&entry.body)) {
      end(entry.request, finished->prompt.value, finished->hit.value, finished->output.value);
    } else if (const auto* cancelled = std::get_if<cluster::CancelledRecord>(&entry.body)) {
      if (cancelled->output.value > 0) {
        end(entry.request, 0, 0, cancelled->output.value);
      } else {
        failed += static_cast<std::int64_t>(open.erase(entry.request.value));
      }
    } else if (std::get_if<cluster::FailedRecord>(&entry.body) != nullptr) {
      failed += static_cast<std::int64_t>(open.erase(entry.request.value));
    }
  }
};

LoggedTrace::LoggedTrace() : state_(std::make_unique<State>()) {}
LoggedTrace::LoggedTrace(LoggedTrace&&) noexcept = default;
LoggedTrace& LoggedTrace::operator=(LoggedTrace&&) noexcept = default;
LoggedTrace::~LoggedTrace() = default;

void LoggedTrace::add(const Entry& entry) {
  if (const auto* record = std::get_if<cluster::Record>(&entry.body)) {
    state_->record(*record);
  } else if (const auto* name = std::get_if<NameEntry>(&entry.body)) {
    state_->name(*name);
  } else if (const auto* image = std::get_if<ImageEntry>(&entry.body)) {
    const auto found = state_->open.find(image->request.value);
    if (found != state_->open.end()) found->second.image_tokens[image->image] = image->rows;
  }
}

model::Trace LoggedTrace::finish(const std::string& name) && {
  model::Trace trace;
  trace.name = name;
  trace.block_tokens = model::kBlockTokens;
  std::vector<DoneRequest>& done = state_->done;
  std::ranges::stable_sort(done, {}, &DoneRequest::unix_ns);
  Donors donors;
  std::uint64_t fresh = 0;
  std::int64_t unexplained = 0;
  for (const DoneRequest& one : done) {
    if (!plausible_request(one.prompt, one.output)) continue;
    model::TraceRequest request;
    request.arrival = Nanos{one.unix_ns - done.front().unix_ns};
    request.prompt_tokens = one.prompt;
    request.output_tokens = one.output;
    request.conversation = trace.conversations++;
    const std::int64_t hit = std::clamp<std::int64_t>(one.hit, 0, one.prompt) / model::kBlockTokens;
    const std::int64_t donor = hit > 0 ? donors.find(hit) : -1;
    if (hit > 0 && donor < 0) ++unexplained;
    const std::int64_t total = (one.prompt + one.output) / model::kBlockTokens;
    // A copy: the vector of requests grows, the donor's runs do not move within it.
    const model::TraceRequest of =
        donor < 0 ? model::TraceRequest{} : trace.requests[static_cast<std::size_t>(donor)];
    append_runs(trace, request, donor < 0 ? nullptr : &of, hit, total, fresh);
    donors.add(static_cast<std::int64_t>(trace.requests.size()), one.prompt / model::kBlockTokens, total);
    request.images_begin = static_cast<std::uint32_t>(trace.images.size());
    for (const std::uint32_t tokens : one.image_tokens) trace.images.push_back({tokens, 0, 0});
    request.images_count = static_cast<std::uint32_t>(one.image_tokens.size());
    trace.requests.push_back(request);
  }
  const auto note = [&](std::int64_t count, std::string_view what) {
    if (count > 0) trace.notes.push_back(fmt::format("{}: {} {}", name, count, what));
  };
  note(state_->failed, "requests failed, were refused or were cancelled before their first token: left out");
  note(static_cast<std::int64_t>(state_->open.size()), "requests have no end in the log: left out");
  note(unexplained, "hits are of prompts from before the log: the simulation will not have them");
  return trace;
}

base::Result<model::Trace> read_logged_trace(const std::string& directory, const TraceOptions& options) {
  LoggedTrace gathered;
  const auto scan = read_log(directory, [&](const Entry& entry) { gathered.add(entry); });
  if (!scan) return tl::unexpected<base::Error>(scan.error());
  model::Trace trace = std::move(gathered).finish(directory);
  if (scan->bytes_torn > 0) {
    trace.notes.push_back(
        fmt::format("{}: {} bytes at the end are torn and were left out", directory, scan->bytes_torn));
  }
  if (scan->undecodable > 0) {
    trace.notes.push_back(fmt::format("{}: {} records were written by another version and were left out",
                                      directory, scan->undecodable));
  }
  if (static_cast<std::int64_t>(trace.requests.size()) > options.requests_max) {
    trace.requests.resize(static_cast<std::size_t>(std::max<std::int64_t>(options.requests_max, 0)));
    trace.conversations = static_cast<std::uint32_t>(trace.requests.size());
  }
  return trace;
}

}  // namespace trimtab::io
