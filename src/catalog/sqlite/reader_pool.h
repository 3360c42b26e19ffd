#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "catalog/sqlite/connection.h"
#include "catalog/sqlite/tokenizer.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

/// A connection with the tokenizer that belongs to it.
struct Session {
  std::unique_ptr<Connection> connection;
  std::unique_ptr<KeywordTokenizer> tokenizer;
  [[nodiscard]] static Result<Session> open(const std::filesystem::path& file,
                                            Connection::Mode mode);
};

/// A few read-only sessions, opened when first needed, so that searches do not wait for a writer.
/// Thread-safe.
class ReaderPool {
 public:
  /// A borrowed session inside one read transaction: all its statements see the same state.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    [[nodiscard]] Connection& connection() { return *session_.connection; }
    [[nodiscard]] KeywordTokenizer& tokenizer() { return *session_.tokenizer; }
    [[nodiscard]] Session& session() { return session_; }

   private:
    friend class ReaderPool;
    Lease(ReaderPool* pool, Session session) : pool_(pool), session_(std::move(session)) {}
    ReaderPool* pool_;
    Session session_;
  };

  /// While it lives no reader holds a snapshot, so that the log can be emptied.
  class Pause {
   public:
    explicit Pause(ReaderPool& pool);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    ReaderPool& pool_;
  };

  explicit ReaderPool(std::filesystem::path file) : file_(std::move(file)) {}

  /// Waits while all sessions are lent or readers are paused. Errors: kUnavailable, kDataLoss.
  [[nodiscard]] Result<Lease> acquire();

 private:
  static constexpr std::size_t kMaxReaders = 4;
  void give_back(Session session);

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Session> idle_;  // guarded by mutex_
  std::size_t lent_ = 0;       // guarded by mutex_
  std::size_t pauses_ = 0;     // guarded by mutex_
};

}  // namespace inferscale::sqlite
