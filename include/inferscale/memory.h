#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/export.h"
#include "inferscale/memory_types.h"
#include "inferscale/status.h"
#include "inferscale/transfer_types.h"
#include "inferscale/types.h"
#include "inferscale/verify_types.h"

namespace inferscale {

/// One conversation, append-only: each turn adds only facts that are not yet in the context, so
/// nothing before them is prefilled again. One thread at a time; must not outlive its service.
class INFERSCALE_API Chat {
 public:
  virtual ~Chat() = default;
  /// Streams through `on_text` as AskRequest does. Errors: kResourceExhausted when the conversation
  /// no longer fits.
  [[nodiscard]] virtual Result<AskReply> say(const std::string& message,
                                             const std::function<bool(std::string_view)>& on_text,
                                             const std::atomic<bool>* cancelled) = 0;
};

/// The memory service: facts of many users, encoded once, answered from injected KV. Thread-safe.
/// The models are loaded when first needed. Errors come from the table in docs/errors.md.
class INFERSCALE_API MemoryService {
 public:
  /// Opens or creates the data directory. Errors: kInvalidArgument (options), kConflict (another
  /// process has it open), kUnavailable (read-only, I/O), kUnsupported (newer format).
  [[nodiscard]] static Result<std::unique_ptr<MemoryService>> open(const MemoryOptions& options);
  virtual ~MemoryService() = default;

  /// Durable when it returns; encodes them before it returns unless `wait` is false. Bad items are
  /// reported, the others are taken. Exact duplicates are no-ops that return the existing id.
  [[nodiscard]] virtual Result<AddReply> add(const Scope& scope, std::span<const TurnInput> turns,
                                             std::span<const FactInput> facts, bool wait,
                                             const WorkControl& control) = 0;
  /// Encodes what is still without a record, in every scope. What failed waits until its next try
  /// is due (`stats`), so that calling this often does no harm.
  [[nodiscard]] virtual Result<EncodeReply> encode_pending(const WorkControl& control) = 0;
  /// Encodes only the facts that earlier answers found without KV.
  [[nodiscard]] virtual Result<EncodeReply> encode_wanted(const WorkControl& control) = 0;

  /// Chooses what facts are encoded behind, for this service and for later ones of the data
  /// directory, and encodes again what was encoded behind something else. Answers go on with the
  /// old records until each is replaced. What is not done when it is stopped is pending, as after a
  /// write: `encode_pending` or the same call goes on. Errors: kInvalidArgument (context).
  [[nodiscard]] virtual Result<EncodeReply> reencode(const ReencodeRequest& request,
                                                     const WorkControl& control) = 0;

  [[nodiscard]] virtual Result<SearchReply> search(const Scope& scope, const std::string& query,
                                                   std::uint32_t k, const std::string& filter) = 0;
  [[nodiscard]] virtual Result<AskReply> ask(const AskRequest& request) = 0;
  /// `rounds` interleaved measurements of each arm; the answers are greedy.
  [[nodiscard]] virtual Result<CompareReply> compare(const AskRequest& request,
                                                     std::uint32_t rounds) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Chat>> open_chat(const ChatOptions& options) = 0;

  [[nodiscard]] virtual Result<FactView> get(const Scope& scope, const std::string& id) = 0;
  [[nodiscard]] virtual Result<FactList> list(const Scope& scope, const std::string& filter,
                                              std::uint32_t limit, const std::string& cursor) = 0;
  [[nodiscard]] virtual Result<std::vector<FactHistoryRow>> history(const Scope& scope,
                                                                    const std::string& id) = 0;
  /// Makes a new version; the old one stays in the history. A patch that changes nothing returns
  /// the live fact. Errors: kNotFound, kConflict (`if_version` is not the live version; another
  /// live fact of the scope says exactly this already).
  [[nodiscard]] virtual Result<FactView> update(const UpdateRequest& request, bool wait,
                                                const WorkControl& control) = 0;
  /// Erases facts with everything that belongs to them or saw them (docs/deletion.md). With `wait`
  /// the facts that lost their record are encoded again before it returns. Errors:
  /// kInvalidArgument, kNotFound (names the first id that is not there; nothing is erased),
  /// kPermissionDenied. A filter or scope that matches nothing is no error.
  [[nodiscard]] virtual Result<DeleteReceipt> remove(const DeleteRequest& request, bool wait,
                                                     const WorkControl& control) = 0;
  /// By id, or all that the scope permits when `ids` is empty.
  [[nodiscard]] Result<DeleteReceipt> remove(const Scope& scope, std::span<const std::string> ids,
                                             bool keep_turns, bool wait,
                                             const WorkControl& control) {
    DeleteRequest request;
    request.scope = scope;
    request.ids.assign(ids.begin(), ids.end());
    request.all_in_scope = ids.empty();
    request.keep_turns = keep_turns;
    return remove(request, wait, control);
  }

  /// Everything that the scope holds itself (not what is shared with it), as it is at one moment,
  /// in the order in which it came. Deletes wait for the end. Errors: those of the sink.
  [[nodiscard]] virtual Status export_scope(const Scope& scope, const ExportSink& sink,
                                            const WorkControl& control) = 0;
  /// Takes what an export gave, ids, versions, times and history included, durably. `target` gives
  /// tenant and user, and agent and run where it sets them. What is there already is left alone;
  /// what is there with other content is an error of that item. An id that another scope has is
  /// replaced by one that the same import always gets. `dry_run` only says what would happen.
  /// Encoding is left to `encode_pending`.
  [[nodiscard]] virtual Result<RestoreReply> restore(const Scope& target,
                                                     std::span<const TurnView> turns,
                                                     std::span<const ExportedFact> facts,
                                                     bool dry_run) = 0;

  [[nodiscard]] virtual Result<StatsReply> stats() = 0;
  /// Self-tests: data directory, catalog, model, state layout, rope, embedder. Never fails as a
  /// whole.
  [[nodiscard]] virtual std::vector<DoctorCheck> doctor() = 0;
  /// Whether catalog, records and files agree with each other; changes nothing, except that a
  /// damaged record is dropped as soon as it is read. Runs beside other calls; deletes wait for
  /// parts of it. Errors: kUnavailable (cancelled, I/O).
  [[nodiscard]] virtual Result<VerifyReport> verify(VerifyLevel level,
                                                    const WorkControl& control) = 0;
  /// Repairs what can be repaired without losing a fact, then verifies. Idempotent. Errors:
  /// kDataLoss (the catalog cannot be read any more), kUnavailable (cancelled, I/O).
  [[nodiscard]] virtual Result<RepairReport> repair(const WorkControl& control) = 0;
  /// Measures automatic `top_j` again. Errors: kUnavailable.
  [[nodiscard]] virtual Result<std::uint32_t> calibrate_top_j() = 0;
};

}  // namespace inferscale
