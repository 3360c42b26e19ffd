#include "memory/header_record.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "memory/record_request.h"

namespace inferscale {
namespace {

// Entries of lines that tell of their scope.
const char* const kLinesOfScope = context_kind_name(ContextKind::kNames);

PrefixSegment lease_prefix(ServiceCore& core, const EngineParts& parts, std::vector<TokenId> tokens,
                           const Scope& scope) {
  PrefixSegment prefix;
  prefix.segment.tokens = std::move(tokens);
  prefix.meta = core.record_meta(parts, ContextKind::kPrefix);
  prefix.meta.context_id = make_context_id(ContextKind::kPrefix, {}, {});
  prefix.meta.scope = scope_hash(scope);
  const RecordKey key = make_record_key(core.secret(), prefix.meta, prefix.segment.tokens);
  std::vector<Lease> leases = core.store().acquire(std::array{record_request(
      parts, key, prefix.meta.context_id, prefix.meta.scope, prefix.segment.tokens)});
  prefix.no_room = leases.front().reason() == MissReason::kNoRoom;
  // An engine that cannot inject cannot capture either: there is nothing to warm.
  prefix.cold = !leases.front().ready() && !prefix.no_room && parts.engine->info().injection;
  if (leases.front().ready()) {
    prefix.segment.lease = std::move(leases.front());
  }
  return prefix;
}

// Under the record mutex, so that no erase passes between the look at the witness and the put: what
// tells of a scope must not outlive it.
Status commit(ServiceCore& core, const RecordEntry& entry, const std::optional<Fact>& witness,
              std::shared_ptr<const Record> record) {
  const std::lock_guard lock(core.record_mutex());
  if (witness) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<Fact> there,
        core.catalog().get_facts(witness->scope, std::span(&witness->id, 1)));
    if (there.empty()) {
      return {};
    }
  }
  INFERSCALE_RETURN_IF_ERROR(core.catalog().commit_record(entry).status());
  return core.store().put(entry.key, std::move(record));
}

}  // namespace

PrefixSegment lease_header(ServiceCore& core, const EngineParts& parts) {
  return lease_prefix(core, parts, parts.prompt->header(), system_scope());
}

PrefixSegment lease_lines(ServiceCore& core, const EngineParts& parts,
                          const std::vector<std::vector<TokenId>>& lines, const Fact* owner) {
  std::vector<TokenId> tokens = parts.prompt->header();
  for (const std::vector<TokenId>& line : lines) {
    tokens.insert(tokens.end(), line.begin(), line.end());
  }
  PrefixSegment prefix = lease_prefix(core, parts, std::move(tokens),
                                      owner != nullptr ? owner->scope : system_scope());
  if (owner != nullptr) {
    prefix.witness = *owner;
  }
  return prefix;
}

Status warm_header(ServiceCore& core, const EngineParts& parts, const Scope& asker) {
  PrefixSegment header = lease_header(core, parts);
  if (!header.cold) {
    return {};
  }
  RunRequest run;
  INFERSCALE_ASSIGN_OR_RETURN(run.run_for, core.run_for(asker));
  Branch branch;
  branch.captures.push_back(
      {0, static_cast<std::uint32_t>(header.segment.tokens.size()), header.meta});
  branch.tokens = std::move(header.segment.tokens);
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, parts.engine->run(std::move(run)));
  keep_prefix(core, parts, header, std::move(result.branches.front().records.at(0)));
  return {};
}

void keep_prefix(ServiceCore& core, const EngineParts& parts, const PrefixSegment& prefix,
                 std::shared_ptr<const Record> record) {
  if (record == nullptr) {
    return;  // the engine could not capture, which its fallbacks say: it stays cold
  }
  RecordEntry entry;
  entry.model_fingerprint = parts.fingerprint();
  entry.context = prefix.witness ? kLinesOfScope : context_kind_name(ContextKind::kPrefix);
  entry.key = make_record_key(core.secret(), record->meta(), record->token_ids());
  entry.context_id = record->meta().context_id;
  entry.scope = record->meta().scope;
  entry.n_tokens = record->n_tokens();
  if (const Status status = commit(core, entry, prefix.witness, std::move(record)); !status.ok()) {
    log_message(LogLevel::kWarning,
                "the KV of a prompt's beginning is not kept on disk: " + status.to_string());
  }
}

Status drop_other_lines(ServiceCore& core, const EngineParts& parts, const Scope& owner,
                        const PrefixSegment* current) {
  const std::lock_guard lock(core.record_mutex());
  INFERSCALE_ASSIGN_OR_RETURN(
      std::vector<RecordKey> others,
      core.catalog().shared_records(scope_hash(owner), parts.fingerprint(), kLinesOfScope));
  if (current != nullptr) {
    std::erase(others, make_record_key(core.secret(), current->meta, current->segment.tokens));
  }
  if (others.empty()) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RecordKey> dropped,
                              core.catalog().drop_records(others));
  return core.erase_records(owner, dropped).status();
}

}  // namespace inferscale
