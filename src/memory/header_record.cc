#include "memory/header_record.h"

#include <array>

#include "base/log.h"

namespace inferscale {

HeaderSegment lease_header(ServiceCore& core, const EngineParts& parts) {
  HeaderSegment header;
  header.segment.tokens = parts.prompt->header();
  header.meta = core.record_meta(parts);
  header.meta.context_kind = ContextKind::kPrefix;
  header.meta.context_id = make_context_id(ContextKind::kPrefix, {}, {});
  header.meta.scope = scope_hash(system_scope());
  RecordRequest request;
  request.key = make_record_key(core.secret(), header.meta, header.segment.tokens);
  request.model_fingerprint = header.meta.model_fingerprint;
  request.shape = header.meta.shape;
  request.scope = header.meta.scope;
  request.token_ids = header.segment.tokens;
  request.context_id = header.meta.context_id;
  std::vector<Lease> leases = core.store().acquire(std::array{request});
  header.no_room = leases.front().reason() == MissReason::kNoRoom;
  // An engine that cannot inject cannot capture either: there is nothing to warm.
  header.cold = !leases.front().ready() && !header.no_room && parts.engine->info().injection;
  if (leases.front().ready()) {
    header.segment.lease = std::move(leases.front());
  }
  return header;
}

Status warm_header(ServiceCore& core, const EngineParts& parts) {
  HeaderSegment header = lease_header(core, parts);
  if (!header.cold) {
    return {};
  }
  RunRequest run;
  Branch branch;
  branch.captures.push_back(
      {0, static_cast<std::uint32_t>(header.segment.tokens.size()), header.meta});
  branch.tokens = std::move(header.segment.tokens);
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, parts.engine->run(std::move(run)));
  keep_header(core, parts, std::move(result.branches.front().records.at(0)));
  return {};
}

void keep_header(ServiceCore& core, const EngineParts& parts,
                 std::shared_ptr<const Record> record) {
  if (record == nullptr) {
    return;  // the engine could not capture, which its fallbacks say: the header stays cold
  }
  RecordEntry entry;
  entry.model_fingerprint = parts.fingerprint();
  entry.context = context_kind_name(ContextKind::kPrefix);
  entry.key = make_record_key(core.secret(), record->meta(), record->token_ids());
  entry.context_id = record->meta().context_id;
  entry.scope = record->meta().scope;
  entry.n_tokens = record->n_tokens();
  const std::lock_guard lock(core.record_mutex());
  Status status = core.catalog().commit_record(entry).status();
  if (status.ok()) {
    status = core.store().put(entry.key, std::move(record));
  }
  if (!status.ok()) {
    log_message(LogLevel::kWarning, "the header's KV is not kept on disk: " + status.to_string());
  }
}

}  // namespace inferscale
