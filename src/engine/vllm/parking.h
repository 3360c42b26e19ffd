#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/vllm/control_client.h"
#include "inferscale/status.h"

namespace inferscale::vllm {

/// What of each conversation lies in records behind the last whole block of the server's prefix
/// cache: without it the next turn's facts would stand behind a gap and be text. A conversation's
/// rows there are the records that were injected last and, behind them, one that parking captured.
/// Only names and places are kept here; the server forgets the records themselves
/// (docs/vllm.md). Thread-safe.
class ParkingLot {
 public:
  explicit ParkingLot(std::uint32_t block_size) : block_size_(block_size) {}

  /// The records to name before the plan's own: those that reach from the last whole block to the
  /// end of what was parked. None unless the plan starts with exactly that.
  [[nodiscard]] std::vector<RecordKey> before(const RunRequest& request) const;

  /// The rows that a parking run, one that generates nothing, should capture: from the last whole
  /// block, or where the records of the turn end, to the end of the sequence. None when nothing is
  /// left. Errors: kUnavailable (no random numbers).
  [[nodiscard]] Result<std::optional<CaptureRange>> rest(const RunRequest& request,
                                                         const EngineInfo& info) const;

  /// A turn has run: which records its rows are from.
  void turn_ran(const std::string& session, const RequestTrace& trace);
  /// A parking run has ended; `record`: the one that it captured, if any.
  void parked(const std::string& session, std::vector<TokenId> tokens,
              const std::optional<RequestTrace::Span>& record);
  void forget(const std::string& session);

 private:
  static constexpr std::size_t kMaxSessions = 4096;

  struct Conversation {
    std::vector<TokenId> tokens;            // that were parked; empty while a turn runs
    std::vector<RequestTrace::Span> spans;  // the last run of records without a gap
  };
  [[nodiscard]] std::uint32_t edge(std::size_t tokens) const;

  const std::uint32_t block_size_;
  mutable std::mutex mutex_;
  std::map<std::string, Conversation> conversations_;  // guarded by mutex_
};

/// Whether a run only lays a conversation ready for its next turn.
[[nodiscard]] bool is_parking(const RunRequest& request);

}  // namespace inferscale::vllm
