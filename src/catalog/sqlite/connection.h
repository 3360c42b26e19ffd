#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale::sqlite {

class Connection;

/// A prepared statement borrowed from its connection's cache; given back, reset and unbound, on
/// destruction. Parameters are numbered from 1, columns from 0. One thread at a time.
class Statement {
 public:
  Statement() = default;
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  void bind(int index, std::int64_t value);
  void bind(int index, double value);
  void bind(int index, std::string_view text);
  void bind(int index, std::span<const std::byte> blob);
  void bind(int index, const Hash128& hash);
  void bind(int index, std::nullopt_t);
  void bind(int index, std::optional<std::int64_t> value);

  /// Binds all parameters, in order. A bind that failed (memory, size) shows in `step`.
  template <typename... Args>
  Statement& with(const Args&... args) {
    reset();
    int index = 0;
    (bind(++index, args), ...);
    return *this;
  }

  /// True while there is a row.
  [[nodiscard]] Result<bool> step();
  /// Steps to the end and calls `visit(*this)` for every row.
  template <typename Visit>
  [[nodiscard]] Status for_each(Visit visit) {
    while (true) {
      INFERSCALE_ASSIGN_OR_RETURN(const bool row, step());
      if (!row) {
        return Status();
      }
      visit(*this);
    }
  }
  /// Steps to the end, ignoring rows.
  [[nodiscard]] Status run();
  /// Makes the statement ready to be bound and stepped again.
  void reset();

  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] double real(int column) const;
  [[nodiscard]] bool is_null(int column) const;
  [[nodiscard]] std::optional<std::int64_t> optional_integer(int column) const;
  [[nodiscard]] std::string text(int column) const;
  /// Valid until the next step.
  [[nodiscard]] std::span<const std::byte> blob(int column) const;
  /// Zero when the column does not hold 16 bytes.
  [[nodiscard]] Hash128 hash(int column) const;

 private:
  friend class Connection;
  Statement(Connection* owner, sqlite3_stmt* raw, bool cached)
      : owner_(owner), raw_(raw), cached_(cached) {}
  void note(int rc);
  void release();

  Connection* owner_ = nullptr;
  sqlite3_stmt* raw_ = nullptr;
  bool cached_ = false;
  int bind_error_ = SQLITE_OK;
};

/// One SQLite connection with its statement cache. One thread at a time (opened without SQLite's
/// own mutex): the writer lock and the reader pool see to that.
class Connection {
 public:
  enum class Mode { kReadWrite, kReadOnly };

  /// The file must exist. Errors: kUnavailable, kDataLoss.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> open(const std::filesystem::path& file,
                                                                Mode mode);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// One or more statements without parameters.
  [[nodiscard]] Status exec(const char* sql);
  /// A cached statement. REQUIRES: few distinct texts (literals), since the cache does not shrink.
  [[nodiscard]] Result<Statement> prepare(std::string_view sql);
  /// For text that is put together at run time: not cached.
  [[nodiscard]] Result<Statement> prepare_once(std::string_view sql);

  /// Prepares, binds and runs to the end.
  template <typename... Args>
  [[nodiscard]] Status run(std::string_view sql, const Args&... args) {
    INFERSCALE_ASSIGN_OR_RETURN(Statement statement, prepare(sql));
    return statement.with(args...).run();
  }
  /// The first column of the first row, or nothing when there is no row.
  template <typename... Args>
  [[nodiscard]] Result<std::optional<std::int64_t>> find_integer(std::string_view sql,
                                                                 const Args&... args) {
    INFERSCALE_ASSIGN_OR_RETURN(Statement statement, prepare(sql));
    INFERSCALE_ASSIGN_OR_RETURN(const bool row, statement.with(args...).step());
    if (!row) {
      return std::optional<std::int64_t>();
    }
    return std::optional<std::int64_t>(statement.integer(0));
  }
  /// Like find_integer; no row counts as 0.
  template <typename... Args>
  [[nodiscard]] Result<std::int64_t> integer(std::string_view sql, const Args&... args) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> value,
                                find_integer(sql, args...));
    return value.value_or(0);
  }

  [[nodiscard]] std::int64_t last_insert_rowid() const { return sqlite3_last_insert_rowid(raw_); }
  /// Rows changed by the last INSERT, UPDATE or DELETE itself (triggers and cascades not counted).
  [[nodiscard]] std::int64_t changes() const { return sqlite3_changes64(raw_); }
  [[nodiscard]] bool in_transaction() const { return sqlite3_get_autocommit(raw_) == 0; }
  [[nodiscard]] sqlite3* raw() const { return raw_; }

  /// The Status for an error that this connection just reported.
  [[nodiscard]] Status error(int rc) const;

 private:
  friend class Statement;
  explicit Connection(std::filesystem::path file) : file_(std::move(file)) {}
  void give_back(sqlite3_stmt* statement, bool cached);
  [[nodiscard]] Result<sqlite3_stmt*> compile(std::string_view sql, unsigned flags);

  struct CachedStatement {
    sqlite3_stmt* raw = nullptr;
    bool in_use = false;
  };

  std::filesystem::path file_;
  sqlite3* raw_ = nullptr;
  std::map<std::string, CachedStatement, std::less<>> cache_;
};

/// Rolls back on destruction unless committed.
class Transaction {
 public:
  enum class Kind { kWrite, kRead };
  [[nodiscard]] static Result<Transaction> begin(Connection& connection, Kind kind);
  Transaction(Transaction&& other) noexcept;
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  [[nodiscard]] Status commit();

 private:
  explicit Transaction(Connection* connection) : connection_(connection) {}
  Connection* connection_;
};

}  // namespace inferscale::sqlite
