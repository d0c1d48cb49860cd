#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "cluster/records.h"
#include "io/record_file.h"
#include "model/ids.h"

/// The decision log: what the cluster machine decided (`cluster::Record`, with the numbers it saw) and what
/// its host knows besides: names, tokens, checksums. Two files, `decisions.log` and the older
/// `decisions.1.log`, each of at most `file_bytes_max`; the format of both is io/record_file.h, a record is
/// one encoded `Entry`.
namespace trimtab::io {

using base::Nanos;
using model::RequestId;

/// Ties the public id to the number, and the host's monotonic clock to the calendar.
struct NameEntry {
  RequestId request;
  Nanos at;
  std::int64_t unix_ns = 0;
  std::string name;
  template <class A>
  void visit(A& a) {
    a(request, at, unix_ns, name);
  }
};

/// One token given to the client, with the checksum of the logits row that it was drawn from.
struct TokenEntry {
  RequestId request;
  Nanos at;
  cluster::Place from;
  std::uint64_t step = 0;  // of a decode rank; 0 for the token that prefill drew
  std::int32_t token = 0;
  std::uint64_t logits_checksum = 0;
  template <class A>
  void visit(A& a) {
    a(request, at, from, step, token, logits_checksum);
  }
};

/// What an encoder read in an image: the rows as token ids, padding included.
struct ImageEntry {
  RequestId request;
  Nanos at;
  std::uint32_t image = 0, rows = 0, text_tokens = 0, truncated_tokens = 0;
  std::vector<std::int32_t> token_ids;
  template <class A>
  void visit(A& a) {
    a(request, at, image, rows, text_tokens, truncated_tokens, token_ids);
  }
};

/// What a prefill rank did with the blocks of a finished prompt.
struct BlocksEntry {
  RequestId request;
  Nanos at;
  std::uint32_t stored = 0;  // new full blocks given to the pool
  std::uint32_t handed = 0;  // blocks copied into the decode rank's memory
  template <class A>
  void visit(A& a) {
    a(request, at, stored, handed);
  }
};

/// What became of the hit that the pool promised, once the engine had read it.
struct HitEntry {
  RequestId request;
  Nanos at;
  std::string outcome;                // hit, miss, skipped, stale, fallback
  std::uint32_t promised_tokens = 0;  // by the answer at the match
  std::uint32_t read_tokens = 0;      // the rest of the promised ones were computed
  // Models with sliding-window layers:
  std::uint32_t state_tokens = 0;  // the computation began from the window state after these; 0: from none
  std::uint32_t window_tokens =
      0;                         // whose blocks were read and that were computed again for their window only
  std::uint8_t approximate = 0;  // 1: fewer of them than the stacked windows see
  template <class A>
  void visit(A& a) {
    a(request, at, outcome, promised_tokens, read_tokens, state_tokens, window_tokens, approximate);
  }
};

/// Steps of a prompt that began before all of its hit had come.
struct SwapInEntry {
  RequestId request;
  Nanos at;
  std::int64_t step_ns = 0, stalled_ns = 0;  // how long they took; of that, waited for layers
  std::uint32_t thrown_tokens = 0;           // computed in vain, because a layer did not come
  template <class A>
  void visit(A& a) {
    a(request, at, step_ns, stalled_ns, thrown_tokens);
  }
};

/// A request whose hit began approximate, computed a second time, exactly: how far its first token's logits
/// were off (kv::LogitsDrift). Comes after the token, often after the end.
struct DriftEntry {
  RequestId request;
  Nanos at;
  double relative = 0, largest = 0;   // in units of the spread of the logits
  std::uint8_t same_token = 0;        // 1: the most likely token is the same
  std::uint32_t computed_tokens = 0;  // by the second computation
  template <class A>
  void visit(A& a) {
    a(request, at, relative, largest, same_token, computed_tokens);
  }
};

struct Entry {
  std::variant<cluster::Record, NameEntry, TokenEntry, ImageEntry, BlocksEntry, HitEntry, SwapInEntry,
               DriftEntry>
      body;

  RequestId request() const {
    return std::visit([](const auto& e) { return e.request; }, body);
  }
  Nanos at() const {
    return std::visit([](const auto& e) { return e.at; }, body);
  }
  template <class A>
  void visit(A& a) {
    cluster::visit_variant(body, a);
  }
};

/// One record's payload. kDataLoss for bytes that this build does not know as an entry: another version wrote
/// them (accidents are found by the record's checksum).
base::Result<Entry> decode_entry(std::span<const std::byte> payload);

struct DecisionLogOptions {
  std::string directory;
  std::uint64_t file_bytes_max = 64UL << 20;
  /// Share of the requests that are logged, drawn by a hash of the id: all entries of a request or none.
  /// Entries of the cluster itself (request 0) always are.
  double sample_ratio = 1.0;
};

class DecisionLog {
 public:
  /// Opens or creates the log; a torn tail is cut off (see `torn_bytes_cut`).
  static base::Result<DecisionLog> open(DecisionLogOptions options);

  bool sampled(RequestId id) const;
  /// Keeps the entry in memory until `flush`, or writes when much has gathered.
  void append(const Entry& entry);
  base::Status flush();
  std::uint64_t dropped_bytes() const { return dropped_bytes_ + file_.dropped_bytes(); }
  std::uint64_t torn_bytes_cut() const { return torn_bytes_cut_; }

 private:
  DecisionLog(DecisionLogOptions options, RecordFile file);
  base::Status rotate();
  DecisionLogOptions options_;
  RecordFile file_;
  std::uint64_t torn_bytes_cut_ = 0;
  std::uint64_t dropped_bytes_ = 0;
};

/// What a reading pass over both files found; the older file comes first.
struct LogScan {
  std::uint64_t entries = 0;
  std::uint64_t bytes_torn = 0;   // at the ends of the files: a writer died, or is writing now
  std::uint64_t undecodable = 0;  // whole records that this build cannot read
};

/// Visits every entry of the log in `directory`, oldest first. kNotFound when there is no log.
base::Result<LogScan> read_log(const std::string& directory, const std::function<void(const Entry&)>& visit);

/// All that the log has of one request.
struct LoggedRequest {
  RequestId id;
  std::string name;
  std::vector<Entry> entries;  // in time order
  LogScan scan;
};

/// Finds a request by its public name (the newest of that name) or by its number. Empty when the log, or its
/// sample, does not have it.
base::Result<std::optional<LoggedRequest>> find_request(const std::string& directory,
                                                        const std::string& name_or_id);

std::string log_path(const std::string& directory);
std::string older_log_path(const std::string& directory);

}  // namespace trimtab::io
