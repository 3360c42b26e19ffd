#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/memory.h"
#include "memory/answerer.h"
#include "memory/encode_worker.h"
#include "memory/encoder.h"
#include "memory/service_core.h"

namespace inferscale {

/// MemoryService over the shared core: service.cc opens and asks, service_write.cc adds and
/// updates, service_remove.cc removes, service_read.cc reads, doctor.cc and verify.cc check,
/// repair.cc repairs, export.cc exports and restores.
class Service final : public MemoryService {
 public:
  explicit Service(std::unique_ptr<ServiceCore> core);

  Result<AddReply> add(const Scope& scope, std::span<const TurnInput> turns,
                       std::span<const FactInput> facts, bool wait,
                       const WorkControl& control) override;
  Result<EncodeReply> encode_pending(const WorkControl& control) override;
  Result<EncodeReply> encode_wanted(const WorkControl& control) override;
  Result<EncodeReply> reencode(const ReencodeRequest& request, const WorkControl& control) override;
  Result<SearchReply> search(const Scope& scope, const std::string& query, std::uint32_t k,
                             const std::string& filter) override;
  Result<AskReply> ask(const AskRequest& request) override;
  Result<CompareReply> compare(const AskRequest& request, std::uint32_t rounds) override;
  Result<std::unique_ptr<Chat>> open_chat(const ChatOptions& options) override;
  Result<FactView> get(const Scope& scope, const std::string& id) override;
  Result<FactList> list(const Scope& scope, const std::string& filter, std::uint32_t limit,
                        const std::string& cursor) override;
  Result<std::vector<FactHistoryRow>> history(const Scope& scope, const std::string& id) override;
  Result<FactView> update(const UpdateRequest& request, bool wait,
                          const WorkControl& control) override;
  using MemoryService::remove;
  Result<DeleteReceipt> remove(const DeleteRequest& request, bool wait,
                               const WorkControl& control) override;
  Status export_scope(const Scope& scope, const ExportSink& sink,
                      const WorkControl& control) override;
  Result<RestoreReply> restore(const Scope& target, std::span<const TurnView> turns,
                               std::span<const ExportedFact> facts, bool dry_run) override;
  Result<StatsReply> stats() override;
  std::vector<DoctorCheck> doctor() override;
  Result<VerifyReport> verify(VerifyLevel level, const WorkControl& control) override;
  Result<RepairReport> repair(const WorkControl& control) override;
  Result<std::uint32_t> calibrate_top_j() override;

 private:
  Status add_turns(const Scope& scope, std::span<const TurnInput> turns, AddReply& reply);
  Status add_facts(const Scope& scope, std::span<const FactInput> facts, const WorkControl& control,
                   AddReply& reply);
  void encode_after_write(const WorkControl& control, AddReply& reply);
  Status embed_missing(const WorkControl& control);
  /// For writes that do not wait.
  void leave_to_worker();
  void start_worker();
  Result<EncodeQueueStats> encode_stats(const EngineParts& parts);
  Result<EraseOutcome> erase(const EraseRequest& request, DeleteReceipt& receipt);
  [[nodiscard]] Status erase_records(const EraseOutcome& outcome, DeleteReceipt& receipt);
  void encode_dependants(const Scope& scope, const EraseOutcome& outcome,
                         const WorkControl& control, DeleteReceipt& receipt);

  std::unique_ptr<ServiceCore> core_;
  Encoder encoder_;
  Answerer answerer_;
  std::atomic<std::uint64_t> chats_opened_{0};
  std::unique_ptr<EncodeWorker> worker_;  ///< last: it ends before what it uses
};

/// As users see a fact: times in RFC 3339.
[[nodiscard]] FactView to_view(const Fact& fact);

}  // namespace inferscale
