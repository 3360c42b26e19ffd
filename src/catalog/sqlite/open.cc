#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/log.h"
#include "catalog/sqlite/schema.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"
#include "catalog/sqlite/validate.h"

namespace inferscale {
namespace sqlite {
namespace {

constexpr const char* kFileName = "catalog.sqlite";
constexpr const char* kLockName = "catalog.lock";
constexpr std::size_t kMaxSettingBytes = 1U << 20;

Status no_access(const std::filesystem::path& path, const char* action) {
  return unavailable(
      fmt::format("catalog: cannot {} {}: {}; make it readable and writable for this "
                  "user, or choose another data directory",
                  action, path.string(), std::generic_category().message(errno)));
}

/// Takes the rights of group and others away. Files of others are left to their owner.
Status make_private(const std::filesystem::path& path, mode_t mode) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : no_access(path, "inspect");
  }
  if ((info.st_mode & 0077U) != 0 && info.st_uid == ::geteuid() &&
      ::chmod(path.c_str(), mode) != 0) {
    return no_access(path, "restrict");
  }
  return Status();
}

/// SQLite would create the file with the modes of the umask, and its log with those of the file.
Status create_private(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return no_access(file, "open");
  }
  ::close(descriptor);
  for (const char* suffix : {"", "-wal", "-shm"}) {
    INFERSCALE_RETURN_IF_ERROR(make_private(file.string() + suffix, 0600));
  }
  return Status();
}

Result<FileLock> take_lock(const std::filesystem::path& directory) {
  Result<FileLock> lock = FileLock::acquire(directory / kLockName);
  if (!lock.ok() && lock.status().code() == StatusCode::kConflict) {
    return conflict(
        fmt::format("the data directory {} is in use by another InferScale process: stop that "
                    "process, or choose another directory ({})",
                    directory.string(), lock.status().message()));
  }
  return lock;
}

}  // namespace

Result<std::unique_ptr<Catalog>> SqliteCatalog::open(const SqliteCatalogOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(posix_file_system().make_private_directory(options.directory));
  INFERSCALE_ASSIGN_OR_RETURN(FileLock lock, take_lock(options.directory));
  INFERSCALE_RETURN_IF_ERROR(make_private(options.directory, 0700));
  const std::filesystem::path file = options.directory / kFileName;
  INFERSCALE_RETURN_IF_ERROR(create_private(file));
  std::unique_ptr<SqliteCatalog> catalog(new SqliteCatalog(file, std::move(lock)));
  INFERSCALE_ASSIGN_OR_RETURN(catalog->writer_, Session::open(file, Connection::Mode::kReadWrite));
  Connection& connection = *catalog->writer_.connection;
  INFERSCALE_RETURN_IF_ERROR(configure_writer(connection, options.max_bytes));
  const Status migrated = migrate(connection, migrations());
  if (!migrated.ok()) {
    return migrated.with_context(file.string());
  }
  // What an erase removed must not survive in the log of a process that was killed after it.
  INFERSCALE_RETURN_IF_ERROR(catalog->empty_log());
  return std::unique_ptr<Catalog>(std::move(catalog));
}

SqliteCatalog::~SqliteCatalog() = default;

Result<SqliteCatalog::Write> SqliteCatalog::begin_write() {
  std::unique_lock lock(write_mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(Transaction transaction,
                              Transaction::begin(*writer_.connection, Transaction::Kind::kWrite));
  return Write{std::move(lock), *writer_.connection, *writer_.tokenizer, std::move(transaction)};
}

Status SqliteCatalog::empty_log() {
  const ReaderPool::Pause pause(readers_);
  INFERSCALE_ASSIGN_OR_RETURN(Statement checkpoint,
                              writer_.connection->prepare("PRAGMA wal_checkpoint(TRUNCATE)"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool row, checkpoint.step());
  if (!row || checkpoint.integer(0) != 0) {
    return unavailable(fmt::format(
        "catalog {}: the log could not be emptied because another program reads the file: close it",
        file_.string()));
  }
  return Status();
}

Result<std::optional<std::string>> SqliteCatalog::get_setting(std::string_view name) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare("SELECT value FROM settings WHERE name = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(name).step());
  return found ? std::optional<std::string>(statement.text(0)) : std::nullopt;
}

Status SqliteCatalog::put_setting(std::string_view name, std::string_view value) {
  if (name.empty() || name.size() > 256 || value.size() > kMaxSettingBytes) {
    return invalid_argument("a setting's name must have 1 to 256 bytes, its value at most 1 MiB");
  }
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_RETURN_IF_ERROR(
      write.connection.run("INSERT INTO settings(name, value) VALUES(?1, ?2)"
                           " ON CONFLICT(name) DO UPDATE SET value = excluded.value",
                           name, value));
  return write.transaction.commit();
}

}  // namespace sqlite

Result<std::unique_ptr<Catalog>> open_sqlite_catalog(const SqliteCatalogOptions& options) {
  return sqlite::SqliteCatalog::open(options);
}

}  // namespace inferscale
