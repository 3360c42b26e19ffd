#include "memory/record_audit.h"

#include <algorithm>
#include <unordered_set>

namespace inferscale {
namespace {

constexpr std::size_t kPageEntries = 512;

bool describes(const RecordEntry& entry, const Record& record) {
  const RecordMeta& meta = record.meta();
  return meta.model_fingerprint == entry.model_fingerprint && meta.scope == entry.scope &&
         meta.context_id == entry.context_id && record.n_tokens() == entry.n_tokens;
}

class Auditor {
 public:
  Auditor(ServiceCore& core, bool full, const WorkControl& control)
      : core_(core), full_(full), control_(control) {}

  Result<RecordAudit> run() {
    const std::vector<RecordKey> stored = core_.store().keys();
    audit_.records = stored.size();
    INFERSCALE_RETURN_IF_ERROR(walk_entries(stored.size()));
    std::vector<RecordKey> unnamed;
    std::copy_if(stored.begin(), stored.end(), std::back_inserter(unnamed),
                 [&](const RecordKey& key) { return !named_.contains(key); });
    INFERSCALE_RETURN_IF_ERROR(confirm_orphans(unnamed));
    return std::move(audit_);
  }

 private:
  Status walk_entries(std::uint64_t total) {
    std::int64_t after = 0;
    while (true) {
      INFERSCALE_ASSIGN_OR_RETURN(const RecordPage page,
                                  core_.catalog().record_page(after, kPageEntries));
      if (page.rows.empty()) {
        return Status();
      }
      for (const RecordPage::Row& row : page.rows) {
        after = row.row;
        INFERSCALE_RETURN_IF_ERROR(look_at(row.entry));
      }
      if (control_.progress) {
        control_.progress("records", audit_.entries, std::max(audit_.entries, total));
      }
    }
  }

  /// Two facts may share a record: it is read once, and compared with each.
  Status look_at(const RecordEntry& entry) {
    if (is_cancelled(control_)) {
      return unavailable("stopped before every record was looked at");
    }
    ++audit_.entries;
    const bool first = named_.insert(entry.key).second;
    if (!core_.store().contains(entry.key)) {
      ++audit_.missing;
      return Status();
    }
    if (!full_ || !first) {
      return Status();
    }
    const auto record = core_.store().inspect(entry.key);
    if (record.ok() && *record == nullptr) {
      ++audit_.missing;  // gave way meanwhile
    } else if (record.ok() && describes(entry, **record)) {
      ++audit_.sound;
    } else if (record.ok()) {
      audit_.different.push_back(entry.key);
    } else if (record.status().code() == StatusCode::kDataLoss) {
      audit_.damaged.push_back(entry.key);
    } else {
      return record.status();
    }
    return Status();
  }

  /// A record that was committed after the entries were read is none: ask again, with commits kept
  /// out.
  Status confirm_orphans(const std::vector<RecordKey>& unnamed) {
    if (unnamed.empty()) {
      return Status();
    }
    const std::lock_guard lock(core_.record_mutex());
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RecordKey> keys,
                                core_.catalog().all_record_keys());
    const std::unordered_set<RecordKey> now(keys.begin(), keys.end());
    std::copy_if(
        unnamed.begin(), unnamed.end(), std::back_inserter(audit_.orphans),
        [&](const RecordKey& key) { return !now.contains(key) && core_.store().contains(key); });
    return Status();
  }

  ServiceCore& core_;
  const bool full_;
  const WorkControl& control_;
  RecordAudit audit_;
  std::unordered_set<RecordKey> named_;
};

}  // namespace

Result<RecordAudit> audit_records(ServiceCore& core, bool full, const WorkControl& control) {
  return Auditor(core, full, control).run();
}

}  // namespace inferscale
