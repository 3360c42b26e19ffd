#include "catalog/sqlite/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "catalog/sqlite/row_checksum.h"
#include "catalog/sqlite/scrub_vfs.h"

namespace inferscale::sqlite {
namespace {

/// How SQLite says that there is no room for the memory that its processes share (the -shm file).
constexpr int kNoRoomForShm = SQLITE_IOERR_SHMSIZE;

int primary_code(int rc) { return rc == kNoRoomForShm ? SQLITE_FULL : rc & 0xFF; }

StatusCode code_of(int rc) {
  switch (primary_code(rc)) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return StatusCode::kResourceExhausted;
    case SQLITE_TOOBIG:
      return StatusCode::kInvalidArgument;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return StatusCode::kDataLoss;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_READONLY:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_PROTOCOL:
    case SQLITE_NOLFS:
    case SQLITE_INTERRUPT:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

const char* advice_of(int rc) {
  switch (primary_code(rc)) {
    case SQLITE_FULL:
      return "free space on that disk (what is in kv/ is only a cache), then repeat the operation; "
             "nothing was written";
    case SQLITE_NOMEM:
      return "free memory, then repeat the operation";
    case SQLITE_TOOBIG:
      return "a value is larger than the database accepts";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the file is damaged or not a catalog: restore it from a backup, or remove the whole "
             "data directory to start anew";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another program is using the file: close it, then repeat the operation";
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return "make the directory and the file readable and writable for this user";
    case SQLITE_IOERR:
      return "check the disk, then repeat the operation";
    default:
      return "this is a fault of InferScale: please report it";
  }
}

/// Whether a statement failed because of what the file says its tables are. Our statements are
/// fixed, so that a name which is not there, or an index that cannot be used as one, is a damaged
/// schema. (What SQLite itself finds malformed is SQLITE_CORRUPT.)
bool says_schema_is_damaged(std::string_view message) {
  constexpr std::string_view kSigns[] = {"no such ",
                                         "has no column named",
                                         "syntax error",
                                         "error in ",
                                         "has no columns",
                                         "unrecognized token",
                                         "unsupported file format",
                                         "vtable constructor failed",
                                         "foreign key mismatch",
                                         "SQL logic error"};
  return std::any_of(std::begin(kSigns), std::end(kSigns), [&](std::string_view sign) {
    return message.find(sign) != std::string_view::npos;
  });
}

Status make_error(int rc, const std::filesystem::path& file, std::string_view detail) {
  return Status(code_of(rc), fmt::format("catalog {}: {} (SQLite {}): {}", file.string(), detail,
                                         rc, advice_of(rc)));
}

}  // namespace

// --- Statement ---

Statement::Statement(Statement&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      raw_(std::exchange(other.raw_, nullptr)),
      cached_(other.cached_),
      bind_error_(other.bind_error_) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(raw_, other.raw_);
  std::swap(cached_, other.cached_);
  std::swap(bind_error_, other.bind_error_);
  return *this;
}

Statement::~Statement() { release(); }

void Statement::release() {
  if (raw_ != nullptr) {
    owner_->give_back(std::exchange(raw_, nullptr), cached_);
  }
}

void Statement::note(int rc) {
  if (rc != SQLITE_OK) {
    bind_error_ = rc;
  }
}

void Statement::bind(int index, std::int64_t value) {
  note(sqlite3_bind_int64(raw_, index, value));
}

void Statement::bind(int index, double value) { note(sqlite3_bind_double(raw_, index, value)); }

void Statement::bind(int index, std::string_view text) {
  // A null pointer would bind NULL; an empty view may hold one.
  note(sqlite3_bind_text64(raw_, index, text.data() == nullptr ? "" : text.data(), text.size(),
                           SQLITE_TRANSIENT, SQLITE_UTF8));
}

void Statement::bind(int index, std::span<const std::byte> blob) {
  if (blob.empty()) {
    note(sqlite3_bind_zeroblob(raw_, index, 0));
    return;
  }
  note(sqlite3_bind_blob64(raw_, index, blob.data(), blob.size(), SQLITE_TRANSIENT));
}

void Statement::bind(int index, const Hash128& hash) {
  bind(index, std::span<const std::byte>(hash.bytes));
}

void Statement::bind(int index, std::nullopt_t) { note(sqlite3_bind_null(raw_, index)); }

void Statement::bind(int index, std::optional<std::int64_t> value) {
  if (value) {
    bind(index, *value);
  } else {
    bind(index, std::nullopt);
  }
}

Result<bool> Statement::step() {
  if (bind_error_ != SQLITE_OK) {
    return owner_->error(bind_error_);
  }
  const int rc = sqlite3_step(raw_);
  if (rc == SQLITE_ROW) {
    return true;
  }
  if (rc == SQLITE_DONE) {
    return false;
  }
  return owner_->error(sqlite3_extended_errcode(owner_->raw_));
}

Status Statement::run() {
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const bool row, step());
    if (!row) {
      sqlite3_reset(raw_);
      return Status();
    }
  }
}

void Statement::reset() {
  sqlite3_reset(raw_);  // repeats the error of the last step, which step() reported
  bind_error_ = SQLITE_OK;
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(raw_, column); }

double Statement::real(int column) const { return sqlite3_column_double(raw_, column); }

bool Statement::is_null(int column) const {
  return sqlite3_column_type(raw_, column) == SQLITE_NULL;
}

std::optional<std::int64_t> Statement::optional_integer(int column) const {
  return is_null(column) ? std::nullopt : std::optional<std::int64_t>(integer(column));
}

std::string Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(raw_, column));
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(raw_, column));
  return data == nullptr ? std::string() : std::string(data, size);
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(raw_, column));
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(raw_, column))};
}

Hash128 Statement::hash(int column) const {
  Hash128 hash;
  const std::span<const std::byte> bytes = blob(column);
  if (bytes.size() == hash.bytes.size()) {
    std::memcpy(hash.bytes.data(), bytes.data(), bytes.size());
  }
  return hash;
}

// --- Connection ---

Result<std::unique_ptr<Connection>> Connection::open(const std::filesystem::path& file, Mode mode) {
  std::unique_ptr<Connection> connection(new Connection(file));
  // Readers open the file for writing too: a WAL reader has to update the shared wal-index.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
  const int rc = sqlite3_open_v2(file.c_str(), &connection->raw_, flags, scrubbing_vfs());
  if (rc != SQLITE_OK) {
    return connection->raw_ == nullptr ? make_error(rc, file, sqlite3_errstr(rc))
                                       : connection->error(rc);
  }
  sqlite3_extended_result_codes(connection->raw_, 1);
  sqlite3_busy_timeout(connection->raw_, 5000);
  sqlite3_db_config(connection->raw_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(connection->raw_, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
  // temp_store: sorters and statement journals must not leave text in temporary files.
  INFERSCALE_RETURN_IF_ERROR(
      connection->exec("PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; PRAGMA foreign_keys=ON;"
                       "PRAGMA cell_size_check=ON; PRAGMA mmap_size=0;"));
  INFERSCALE_RETURN_IF_ERROR(register_row_checksum(*connection));
  if (mode == Mode::kReadOnly) {
    INFERSCALE_RETURN_IF_ERROR(connection->exec("PRAGMA query_only=ON; PRAGMA cache_size=-8192"));
  }
  return connection;
}

Connection::~Connection() {
  for (auto& [sql, entry] : cache_) {
    sqlite3_finalize(entry.raw);
  }
  if (raw_ != nullptr && sqlite3_close(raw_) != SQLITE_OK) {
    log_message(LogLevel::kError, "catalog: a statement outlived its connection");
    sqlite3_close_v2(raw_);
  }
}

Status Connection::error(int rc) const {
  const bool current = sqlite3_extended_errcode(raw_) == rc || sqlite3_errcode(raw_) == rc;
  const char* const message = current ? sqlite3_errmsg(raw_) : sqlite3_errstr(rc);
  if (primary_code(rc) == SQLITE_ERROR && says_schema_is_damaged(message)) {
    return make_error(SQLITE_CORRUPT, file_, fmt::format("its schema is damaged: {}", message));
  }
  return make_error(rc, file_, message);
}

Status Connection::exec(const char* sql) {
  const int rc = sqlite3_exec(raw_, sql, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? Status() : error(rc);
}

Result<sqlite3_stmt*> Connection::compile(std::string_view sql, unsigned flags) {
  sqlite3_stmt* raw = nullptr;
  const int rc =
      sqlite3_prepare_v3(raw_, sql.data(), static_cast<int>(sql.size()), flags, &raw, nullptr);
  if (rc != SQLITE_OK) {
    return error(rc);
  }
  return raw;
}

Result<Statement> Connection::prepare(std::string_view sql) {
  auto entry = cache_.find(sql);
  if (entry == cache_.end()) {
    INFERSCALE_ASSIGN_OR_RETURN(sqlite3_stmt * raw, compile(sql, SQLITE_PREPARE_PERSISTENT));
    entry = cache_.emplace(std::string(sql), CachedStatement{raw, false}).first;
  }
  if (entry->second.in_use) {
    return prepare_once(sql);
  }
  entry->second.in_use = true;
  return Statement(this, entry->second.raw, true);
}

Result<Statement> Connection::prepare_once(std::string_view sql) {
  INFERSCALE_ASSIGN_OR_RETURN(sqlite3_stmt * raw, compile(sql, 0));
  return Statement(this, raw, false);
}

void Connection::give_back(sqlite3_stmt* statement, bool cached) {
  if (!cached) {
    sqlite3_finalize(statement);
    return;
  }
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  // The text of a prepared statement names its cache entry.
  const auto entry = cache_.find(std::string_view(sqlite3_sql(statement)));
  if (entry != cache_.end()) {
    entry->second.in_use = false;
  }
}

// --- Transaction ---

Result<Transaction> Transaction::begin(Connection& connection, Kind kind) {
  INFERSCALE_RETURN_IF_ERROR(connection.run(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN"));
  return Transaction(&connection);
}

Transaction::Transaction(Transaction&& other) noexcept
    : connection_(std::exchange(other.connection_, nullptr)) {}

Transaction::~Transaction() {
  // Some errors (disk full, I/O) roll back by themselves.
  if (connection_ != nullptr && connection_->in_transaction()) {
    if (const Status status = connection_->run("ROLLBACK"); !status.ok()) {
      log_message(LogLevel::kError, "catalog: rollback failed: " + status.to_string());
    }
  }
}

Status Transaction::commit() {
  INFERSCALE_RETURN_IF_ERROR(connection_->run("COMMIT"));
  connection_ = nullptr;
  return Status();
}

}  // namespace inferscale::sqlite
