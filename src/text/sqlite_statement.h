#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace trimtab::text {

/// A prepared statement, reset when the scope that uses it ends. Only what `AnswerMemory` needs.
class SqliteStatement {
 public:
  SqliteStatement() = default;
  SqliteStatement(sqlite3* database, std::string_view sql) {
    code_ = sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                               &statement_, nullptr);
  }
  SqliteStatement(SqliteStatement&& other) noexcept
      : statement_(std::exchange(other.statement_, nullptr)), code_(other.code_) {}
  SqliteStatement& operator=(SqliteStatement&& other) noexcept {
    std::swap(statement_, other.statement_);
    code_ = other.code_;
    return *this;
  }
  ~SqliteStatement() { sqlite3_finalize(statement_); }

  int code() const { return code_; }

  void bind(int index, std::uint64_t value) {
    sqlite3_bind_int64(statement_, index, static_cast<std::int64_t>(value));
  }
  /// The bytes must live until `reset`.
  void bind(int index, std::span<const std::byte> bytes) {
    // A null pointer would bind NULL instead of an empty blob.
    sqlite3_bind_blob64(statement_, index, bytes.empty() ? "" : static_cast<const void*>(bytes.data()),
                        bytes.size(), SQLITE_STATIC);
  }
  /// SQLITE_ROW, SQLITE_DONE or an error code.
  int step() { return sqlite3_step(statement_); }
  void reset() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  std::uint64_t number(int column) const {
    return static_cast<std::uint64_t>(sqlite3_column_int64(statement_, column));
  }
  std::span<const std::byte> bytes(int column) const {
    const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
    return {data, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
};

/// Resets a statement at the end of its use, so that it holds no read lock and no bound bytes.
class StatementUse {
 public:
  explicit StatementUse(SqliteStatement& statement) : statement_(statement) {}
  ~StatementUse() { statement_.reset(); }
  StatementUse(const StatementUse&) = delete;
  StatementUse& operator=(const StatementUse&) = delete;

 private:
  SqliteStatement& statement_;
};

}  // namespace trimtab::text
