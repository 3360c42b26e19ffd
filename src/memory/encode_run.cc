#include "memory/encode_run.h"

#include <algorithm>

#include "memory/record_request.h"

namespace inferscale {
namespace {

std::uint32_t count(const std::vector<TokenId>& tokens) {
  return static_cast<std::uint32_t>(tokens.size());
}

class Builder {
 public:
  Builder(ServiceCore& core, const EngineParts& parts, ContextKind kind, const EncodeGroup& group)
      : core_(core), parts_(parts), group_(group) {
    meta_ = core.record_meta(parts, kind);
    meta_.scope = scope_hash(group.facts.front().scope);
    run_.attended_facts = group.attended_facts;
  }

  /// Header and fixed lines: one segment with KV, or text that is captured.
  void add_prefix() {
    if (!group_.header) {
      return;
    }
    if (group_.fixed_lines.empty()) {
      PrefixSegment header = lease_header(core_, parts_);
      add_text(header.segment.tokens, std::move(header.segment.lease));
      note_cold(std::move(header), run_.header);
      return;
    }
    PrefixSegment lines = lease_lines(core_, parts_, group_.fixed_lines,
                                      group_.fixed_of_scope ? &group_.facts.front() : nullptr);
    if (lines.cold) {
      // Prefilled as a whole, the header too: what is captured has then been rounded once.
      note_cold(lease_header(core_, parts_), run_.header);
    }
    add_text(lines.segment.tokens, std::move(lines.segment.lease));
    run_.lines = std::move(lines);
  }

  /// Records of facts, from the first as far as they are at hand; the others are text.
  void add_records(bool allow) {
    run_.first_injected = run_.request.plan.size();
    std::vector<Lease> leases(group_.injected.size());
    if (allow && !leases.empty()) {
      leases = core_.store().acquire(requests());
    }
    bool ready = allow;
    for (std::size_t i = 0; i < group_.injected.size(); ++i) {
      const ContextRecord& record = group_.injected[i];
      ready = ready && leases[i].ready();
      if (ready) {
        run_.request.plan.push_back({record.line, std::move(leases[i])});
        run_.injected.push_back(record.entry.key);
        prefix_tokens_ += count(record.line);
      } else {
        add_text(record.line, Lease());
      }
      run_.attended_facts.push_back(record.fact);
    }
  }

  void add_lines() {
    for (const std::vector<TokenId>& line : group_.lines) {
      add_text(line, Lease());
    }
  }

  void add_facts(const std::vector<std::vector<TokenId>>& lines) {
    std::uint32_t begin = prefix_tokens_;
    for (const std::vector<TokenId>& line : lines) {
      if (run_.request.branches.empty() || !group_.joint) {
        run_.request.branches.emplace_back();
        begin = prefix_tokens_;
      }
      Branch& branch = run_.request.branches.back();
      meta_.context_id = make_context_id(meta_.context_kind, attended_, run_.injected);
      meta_.context_tokens = begin;
      run_.facts.push_back({run_.request.branches.size() - 1, branch.captures.size()});
      branch.captures.push_back({begin, begin + count(line), meta_});
      branch.tokens.insert(branch.tokens.end(), line.begin(), line.end());
      if (group_.joint) {
        begin += count(line);
        attended_.insert(attended_.end(), line.begin(), line.end());
      }
    }
    Branch& first = run_.request.branches.front();
    for (const std::optional<PrefixSegment>* prefix : {&run_.header, &run_.lines}) {
      if (*prefix && (*prefix)->cold) {
        first.captures.push_back({0, count((*prefix)->segment.tokens), (*prefix)->meta});
      }
    }
  }

  EncodeRun take() { return std::move(run_); }

 private:
  void add_text(const std::vector<TokenId>& tokens, Lease lease) {
    attended_.insert(attended_.end(), tokens.begin(), tokens.end());
    prefix_tokens_ += count(tokens);
    const bool goes_on = !lease.ready() && run_.request.plan.size() > run_.first_injected &&
                         !run_.request.plan.back().lease.ready();
    if (goes_on) {
      std::vector<TokenId>& text = run_.request.plan.back().tokens;
      text.insert(text.end(), tokens.begin(), tokens.end());
    } else {
      run_.request.plan.push_back({tokens, std::move(lease)});
    }
  }

  static void note_cold(PrefixSegment prefix, std::optional<PrefixSegment>& place) {
    if (prefix.cold) {
      place = std::move(prefix);
    }
  }

  std::vector<RecordRequest> requests() const {
    std::vector<RecordRequest> requests;
    for (const ContextRecord& record : group_.injected) {
      requests.push_back(record_request(parts_, record.entry.key, record.entry.context_id,
                                        meta_.scope, record.line));
    }
    return requests;
  }

  ServiceCore& core_;
  const EngineParts& parts_;
  const EncodeGroup& group_;
  RecordMeta meta_;
  EncodeRun run_;
  std::vector<TokenId> attended_;  // as text: what stood there, injected facts left out
  std::uint32_t prefix_tokens_ = 0;
};

}  // namespace

bool EncodeRun::as_planned(const RunResult& result) const {
  for (std::size_t i = 0; i < injected.size(); ++i) {
    if (!result.segment_injected.at(first_injected + i)) {
      return false;
    }
  }
  return true;
}

EncodeRun make_encode_run(ServiceCore& core, const EngineParts& parts, ContextKind kind,
                          const EncodeGroup& group, const std::vector<std::vector<TokenId>>& lines,
                          bool allow_records) {
  Builder builder(core, parts, kind, group);
  builder.add_prefix();
  builder.add_records(allow_records);
  builder.add_lines();
  builder.add_facts(lines);
  return builder.take();
}

Status keep_prefixes(ServiceCore& core, const EngineParts& parts, const Scope& scope,
                     const EncodeRun& run, const RunResult& result) {
  const std::vector<std::shared_ptr<const Record>>& records = result.branches.front().records;
  std::size_t at = records.size();  // they are the last ones
  for (const std::optional<PrefixSegment>* prefix : {&run.lines, &run.header}) {
    if (*prefix && (*prefix)->cold) {
      keep_prefix(core, parts, **prefix, records.at(--at));
    }
  }
  const bool of_scope = run.lines && run.lines->witness;
  return drop_other_lines(core, parts, scope, of_scope ? &*run.lines : nullptr);
}

}  // namespace inferscale
