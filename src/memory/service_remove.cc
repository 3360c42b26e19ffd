// Deletion: the catalog first, then the tiers, then whoever uses what is gone; and its receipt.
#include "base/log.h"
#include "memory/service.h"

namespace inferscale {
namespace {

Result<EraseRequest> to_erase_request(const DeleteRequest& request) {
  EraseRequest erase;
  erase.scope = request.scope;
  erase.ids = request.ids;
  if (!request.filter.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(erase.filter, parse_filter(request.filter));
  }
  erase.whole_scope = request.all_in_scope;
  erase.old_versions = request.old_versions;
  erase.keep_turns = request.keep_turns;
  erase.dry_run = request.dry_run;
  return erase;
}

DeleteReceipt receipt_of(const EraseOutcome& outcome) {
  DeleteReceipt receipt;
  receipt.facts = outcome.facts;
  receipt.versions = outcome.versions;
  receipt.history = outcome.history;
  receipt.vectors = outcome.vectors;
  receipt.keywords = outcome.keywords;
  receipt.turns = outcome.turns;
  receipt.record_entries = outcome.records.size();
  receipt.dependants = outcome.dependants.size();
  receipt.note = outcome.note;
  return receipt;
}

}  // namespace

// Under the record mutex from the catalog's commit to the last look into the tiers: no encode job
// can then store a record that was erased, or one like it, in between.
Result<EraseOutcome> Service::erase(const EraseRequest& request, DeleteReceipt& receipt) {
  const std::lock_guard lock(core_->record_mutex());
  INFERSCALE_ASSIGN_OR_RETURN(EraseOutcome outcome, core_->catalog().erase(request));
  receipt = receipt_of(outcome);
  receipt.dry_run = request.dry_run;
  if (request.dry_run) {
    return outcome;
  }
  if (!request.old_versions) {
    for (const ErasedFact& fact : outcome.erased) {
      core_->notify_removed(fact.scope, fact.id);
    }
  }
  if (request.whole_scope && !request.old_versions) {
    core_->notify_scope_erased(request.scope);
  }
  // Before the tiers, which may fail: what the catalog has erased must leave the conversations.
  const AnswerRegistry::Users users =
      core_->answers().note_erased(outcome.erased, request.old_versions, outcome.records);
  receipt.answers_running = users.answers;
  receipt.chats_open = users.conversations;
  INFERSCALE_RETURN_IF_ERROR(erase_records(outcome, receipt));
  if (core_->store().contains_any(outcome.records)) {
    receipt.verified = false;
    receipt.note = "records were found again in a tier after the erase";
  }
  return outcome;
}

/// Mostly all records are of one owner; where others' saw what was erased, each is told of all.
Status Service::erase_records(const EraseOutcome& outcome, DeleteReceipt& receipt) {
  receipt.verified = outcome.verified;
  std::vector<OwnerEpoch> owners = outcome.owners;
  if (owners.empty() && !outcome.records.empty()) {
    owners.emplace_back();  // of nobody
  }
  for (const OwnerEpoch& owner : owners) {
    INFERSCALE_ASSIGN_OR_RETURN(const EraseCounts erased,
                                core_->store().erase_owned(owner, outcome.records));
    receipt.records_gpu += erased.gpu;
    receipt.records_host += erased.host;
    receipt.records_disk += erased.disk;
    receipt.records_in_use += erased.leased;
    if (!erased.unreached.empty()) {
      receipt.engine_away = receipt.engine_away || receipt.verified;
      receipt.verified = false;
      receipt.note = "the engine that keeps records did not confirm: " + erased.unreached +
                     "; it can use none of them, and erases them before it serves this user again";
    }
  }
  return Status();
}

void Service::encode_dependants(const Scope& scope, const EraseOutcome& outcome,
                                const WorkControl& control, DeleteReceipt& receipt) {
  std::vector<std::string> ids;
  for (const FactRef& ref : outcome.dependants) {
    ids.push_back(ref.id);
  }
  auto facts = core_->catalog().get_facts(scope, ids);
  Result<EncodeReply> encoded = facts.ok()
                                    ? encoder_.encode_facts(std::move(facts).value(), control)
                                    : Result<EncodeReply>(facts.status());
  if (!encoded.ok()) {
    log_message(LogLevel::kWarning, "dependants stay text: " + encoded.status().to_string());
    return;
  }
  receipt.dependants_reencoded = encoded->encoded;
}

Result<DeleteReceipt> Service::remove(const DeleteRequest& request, bool wait,
                                      const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(const EraseRequest erase_request, to_erase_request(request));
  DeleteReceipt receipt;
  INFERSCALE_ASSIGN_OR_RETURN(const EraseOutcome outcome, erase(erase_request, receipt));
  if (request.dry_run || outcome.records.empty()) {
    return receipt;
  }
  if (!wait) {
    leave_to_worker();
  } else if (!outcome.dependants.empty()) {
    encode_dependants(request.scope, outcome, control, receipt);
  }
  return receipt;
}

}  // namespace inferscale
