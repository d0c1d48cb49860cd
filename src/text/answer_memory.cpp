#include "text/answer_memory.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/hash.h"
#include "text/sqlite_statement.h"

namespace trimtab::text {

namespace {

constexpr std::uint64_t kSchemaVersion = 1;

// WAL with NORMAL: a killed process loses nothing, a power cut at most the last answers, and a commit does
// not wait for the disk.
constexpr const char* kSetup = R"(
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA busy_timeout = 1000;
CREATE TABLE IF NOT EXISTS answers (
  text_hash INTEGER NOT NULL, context INTEGER NOT NULL, text BLOB NOT NULL, ids BLOB NOT NULL,
  checksum INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (text_hash, context));
CREATE INDEX IF NOT EXISTS answers_used ON answers (used);
PRAGMA user_version = 1;
)";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

std::uint64_t row_checksum(std::span<const std::byte> text, std::uint64_t context,
                           std::span<const std::byte> ids) {
  return base::checksum(ids, base::mix(base::checksum(text), context));
}

bool is_corrupt(int code) { return code == SQLITE_NOTADB || code == SQLITE_CORRUPT; }

}  // namespace

struct AnswerMemory::Impl {
  ~Impl() { close(); }

  void close() {
    for (SqliteStatement* statement : {&insert, &select, &touch, &erase, &oldest, &sum}) *statement = {};
    sqlite3_close(database);
    database = nullptr;
  }
  int open_database();
  base::Status failed(std::string_view what) const {
    return base::fail(
        base::Code::kIo,
        fmt::format("cannot {} the answer memory {}: {}", what,
                    options.path.empty() ? "in memory" : options.path, sqlite3_errmsg(database)),
        "text");
  }
  int load_totals();
  void remove_row(std::uint64_t row, std::uint64_t row_bytes);
  void evict();

  Options options;
  sqlite3* database = nullptr;
  SqliteStatement insert, select, touch, erase, oldest, sum;
  std::uint64_t sequence = 0;  // the clock of "recently used"
  Stats stats;
  mutable std::mutex mutex;
};

int AnswerMemory::Impl::open_database() {
  const char* path = options.path.empty() ? ":memory:" : options.path.c_str();
  int code = sqlite3_open_v2(path, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  if (code != SQLITE_OK) return code;
  {
    SqliteStatement version(database, "PRAGMA user_version");
    code = version.code() == SQLITE_OK ? version.step() : version.code();
    if (code != SQLITE_ROW) return code;
    // A file of another version is set aside like a broken one: it only costs past answers their hits.
    if (version.number(0) != 0 && version.number(0) != kSchemaVersion) return SQLITE_NOTADB;
  }
  code = sqlite3_exec(database, kSetup, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return code;
  const auto prepare = [&](SqliteStatement& statement, std::string_view sql) {
    if (code == SQLITE_OK) {
      statement = SqliteStatement(database, sql);
      code = statement.code();
    }
  };
  prepare(insert,
          "INSERT INTO answers (text_hash, context, text, ids, checksum, used) VALUES (?, ?, ?, ?, ?, ?)");
  prepare(select,
          "SELECT rowid, context, text, ids, checksum FROM answers WHERE text_hash = ?1 "
          "ORDER BY context = ?2 DESC, used DESC");
  prepare(touch, "UPDATE answers SET used = ? WHERE rowid = ?");
  prepare(erase, "DELETE FROM answers WHERE rowid = ?");
  prepare(oldest, "SELECT rowid, length(text) + length(ids) FROM answers ORDER BY used LIMIT 1");
  prepare(
      sum,
      "SELECT count(*), coalesce(sum(length(text) + length(ids)), 0), coalesce(max(used), 0) FROM answers");
  return code == SQLITE_OK ? load_totals() : code;
}

int AnswerMemory::Impl::load_totals() {
  const StatementUse use(sum);
  const int code = sum.step();
  if (code != SQLITE_ROW) return code;
  stats.answers = sum.number(0);
  stats.bytes = sum.number(1);
  sequence = sum.number(2);
  return SQLITE_OK;
}

void AnswerMemory::Impl::remove_row(std::uint64_t row, std::uint64_t row_bytes) {
  const StatementUse use(erase);
  erase.bind(1, row);
  if (erase.step() != SQLITE_DONE) return;
  --stats.answers;
  stats.bytes -= std::min(stats.bytes, row_bytes);
}

void AnswerMemory::Impl::evict() {
  while (stats.bytes > options.bytes_max) {
    std::uint64_t row = 0;
    std::uint64_t row_bytes = 0;
    {
      const StatementUse use(oldest);
      if (oldest.step() != SQLITE_ROW) return;
      row = oldest.number(0);
      row_bytes = oldest.number(1);
    }
    const std::uint64_t before = stats.answers;
    remove_row(row, row_bytes);
    if (stats.answers == before) return;  // the disk refuses; the next answer tries again
    ++stats.evicted;
  }
}

base::Result<std::unique_ptr<AnswerMemory>> AnswerMemory::open(Options options) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  int code = impl->open_database();
  if (is_corrupt(code) && !impl->options.path.empty()) {
    impl->close();
    const std::string& path = impl->options.path;
    std::rename(path.c_str(), (path + ".corrupt").c_str());
    for (const char* suffix : {"-wal", "-shm"}) std::remove((path + suffix).c_str());
    impl->stats = {};
    impl->stats.corrupt = 1;
    code = impl->open_database();
  }
  if (code != SQLITE_OK) {
    const auto failure = impl->failed("open");
    return tl::unexpected(failure.error());
  }
  impl->evict();  // the limit may have been lowered
  return std::unique_ptr<AnswerMemory>(new AnswerMemory(std::move(impl)));
}

AnswerMemory::AnswerMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AnswerMemory::~AnswerMemory() = default;

base::Status AnswerMemory::remember(std::string_view text, std::uint64_t context,
                                    std::span<const TokenId> ids) {
  if (text.empty() || ids.empty() || text.size() > impl_->options.answer_bytes_max) return {};
  const std::lock_guard lock(impl_->mutex);
  const auto text_bytes = bytes_of(text);
  const auto id_bytes = std::as_bytes(ids);
  const std::uint64_t hash = base::checksum(text);
  std::uint64_t replaced = 0;
  std::uint64_t replaced_bytes = 0;
  {
    const StatementUse use(impl_->select);
    impl_->select.bind(1, hash);
    impl_->select.bind(2, context);
    if (impl_->select.step() == SQLITE_ROW && impl_->select.number(1) == context) {
      replaced = impl_->select.number(0);
      replaced_bytes = impl_->select.bytes(2).size() + impl_->select.bytes(3).size();
    }
  }
  if (replaced != 0) impl_->remove_row(replaced, replaced_bytes);
  {
    const StatementUse use(impl_->insert);
    impl_->insert.bind(1, hash);
    impl_->insert.bind(2, context);
    impl_->insert.bind(3, text_bytes);
    impl_->insert.bind(4, id_bytes);
    impl_->insert.bind(5, row_checksum(text_bytes, context, id_bytes));
    impl_->insert.bind(6, ++impl_->sequence);
    if (impl_->insert.step() != SQLITE_DONE) return impl_->failed("write");
  }
  ++impl_->stats.answers;
  impl_->stats.bytes += text_bytes.size() + id_bytes.size();
  impl_->evict();
  return {};
}

std::optional<std::vector<TokenId>> AnswerMemory::find(std::string_view text, std::uint64_t context) {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> broken;  // rows whose checksum is wrong, their bytes
  std::optional<std::vector<TokenId>> found;
  std::uint64_t row = 0;
  {
    const StatementUse use(impl_->select);
    impl_->select.bind(1, base::checksum(text));
    impl_->select.bind(2, context);
    while (!found && impl_->select.step() == SQLITE_ROW) {
      const auto stored_text = impl_->select.bytes(2);
      const auto ids = impl_->select.bytes(3);
      if (row_checksum(stored_text, impl_->select.number(1), ids) != impl_->select.number(4) ||
          ids.size() % sizeof(TokenId) != 0) {
        broken.emplace_back(impl_->select.number(0), stored_text.size() + ids.size());
        continue;
      }
      // Another text of the same hash is no error, only no hit.
      if (stored_text.size() != text.size() || std::memcmp(stored_text.data(), text.data(), text.size()) != 0)
        continue;
      row = impl_->select.number(0);
      found.emplace(ids.size() / sizeof(TokenId));
      std::memcpy(found->data(), ids.data(), ids.size());
    }
  }
  for (const auto& [broken_row, row_bytes] : broken) {
    ++impl_->stats.corrupt;
    impl_->remove_row(broken_row, row_bytes);
  }
  if (found) {
    const StatementUse use(impl_->touch);
    impl_->touch.bind(1, ++impl_->sequence);
    impl_->touch.bind(2, row);
    impl_->touch.step();  // failing only ages the row
  }
  found ? ++impl_->stats.hits : ++impl_->stats.misses;
  return found;
}

AnswerMemory::Stats AnswerMemory::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

std::vector<TokenId> ids_of_shown_text(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                       std::string_view shown) {
  std::vector<TokenId> kept;
  std::size_t at = 0;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (tokenizer.is_special(id)) break;
    if (!shown.substr(at).starts_with(bytes)) break;
    kept.push_back(id);
    at += bytes.size();
  }
  // A character may lie half in the last kept token: then that token goes as well, with those that it needs.
  while (!kept.empty() && at < shown.size() && (static_cast<unsigned char>(shown[at]) & 0xC0U) == 0x80U) {
    at -= tokenizer.token_bytes(kept.back()).size();
    kept.pop_back();
  }
  tokenizer.encode_to(shown.substr(at), false, kept);
  return kept;
}

}  // namespace trimtab::text
