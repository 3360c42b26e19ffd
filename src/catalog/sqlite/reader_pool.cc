#include "catalog/sqlite/reader_pool.h"

#include <utility>

#include "base/log.h"
#include "catalog/sqlite/filter_sql.h"

namespace inferscale::sqlite {

Result<Session> Session::open(const std::filesystem::path& file, Connection::Mode mode) {
  Session session;
  INFERSCALE_ASSIGN_OR_RETURN(session.connection, Connection::open(file, mode));
  INFERSCALE_ASSIGN_OR_RETURN(session.tokenizer, KeywordTokenizer::attach(*session.connection));
  INFERSCALE_RETURN_IF_ERROR(register_filter_functions(*session.connection));
  return session;
}

Result<ReaderPool::Lease> ReaderPool::acquire() {
  Session session;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pauses_ == 0 && lent_ < kMaxReaders; });
    ++lent_;
    if (!idle_.empty()) {
      session = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (session.connection == nullptr) {
    Result<Session> opened = Session::open(file_, Connection::Mode::kReadOnly);
    if (!opened.ok()) {
      give_back(Session());
      return opened.status();
    }
    session = std::move(opened).value();
  }
  Lease lease(this, std::move(session));
  INFERSCALE_RETURN_IF_ERROR(lease.connection().run("BEGIN"));
  return lease;
}

void ReaderPool::give_back(Session session) {
  {
    const std::lock_guard lock(mutex_);
    --lent_;
    if (session.connection != nullptr) {
      idle_.push_back(std::move(session));
    }
  }
  changed_.notify_all();
}

ReaderPool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), session_(std::move(other.session_)) {}

ReaderPool::Lease::~Lease() {
  if (pool_ == nullptr) {
    return;
  }
  if (session_.connection->in_transaction()) {
    if (const Status status = session_.connection->run("COMMIT"); !status.ok()) {
      log_message(LogLevel::kWarning, "catalog: a reader was closed: " + status.to_string());
      session_ = Session();  // never reuse a connection in an unknown state
    }
  }
  pool_->give_back(std::move(session_));
}

ReaderPool::Pause::Pause(ReaderPool& pool) : pool_(pool) {
  std::unique_lock lock(pool_.mutex_);
  ++pool_.pauses_;
  pool_.changed_.wait(lock, [this] { return pool_.lent_ == 0; });
}

ReaderPool::Pause::~Pause() {
  {
    const std::lock_guard lock(pool_.mutex_);
    --pool_.pauses_;
  }
  pool_.changed_.notify_all();
}

}  // namespace inferscale::sqlite
