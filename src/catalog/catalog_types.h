#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "catalog/erase_request.h"
#include "inferscale/kv_record.h"
#include "inferscale/types.h"

namespace inferscale {

/// One raw conversation turn: the source that facts cite.
struct Turn {
  std::string id;  ///< unique within its scope
  Scope scope;
  std::string speaker;
  std::string role;  ///< "user", "assistant", "system", "tool"
  std::string text;
  TimestampUs event_time = 0;
  int event_offset_minutes = 0;
};

/// Vectors of one text: one row per chunk, [n_chunks][dim], each of norm 1.
struct TextVectors {
  std::string embedder_id;  ///< names model and dim, so that vectors of different models never mix
  std::size_t dim = 0;
  std::vector<float> values;
  [[nodiscard]] std::size_t chunks() const { return dim == 0 ? 0 : values.size() / dim; }
};

struct NewFact {
  Scope scope;
  std::string text;             ///< one line, valid UTF-8, at most kMaxFactBytes
  std::string metadata = "{}";  ///< a JSON object, at most kMaxMetadataBytes
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  std::vector<std::string> source_turns;  ///< turn ids in the same scope; need not exist
  TextVectors vectors;                    ///< empty when embedding failed or is deferred
};
inline constexpr std::size_t kMaxFactBytes = 1U << 20;
inline constexpr std::size_t kMaxMetadataBytes = 64U << 10;

/// The live version of a fact.
struct Fact {
  std::string id;  ///< opaque
  Scope scope;
  std::uint32_t version = 1;
  std::int64_t sequence = 0;  ///< ingest order over the whole catalog; kept by updates
  std::string text;
  std::string metadata = "{}";
  std::optional<TimestampUs> event_time;  ///< when it was true or said
  int event_offset_minutes = 0;
  TimestampUs ingest_time = 0;  ///< when this version was written
  std::vector<std::string> source_turns;
};

/// A row of a fact's history, oldest first.
struct FactVersion {
  std::uint32_t version = 1;
  std::string event;  ///< "ADD", "UPDATE"
  std::string text;
  std::string metadata = "{}";
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  TimestampUs valid_from = 0;
  std::optional<TimestampUs> valid_to;  ///< unset while live
};

struct AddOutcome {
  std::string id;
  bool existed = false;  ///< an exact duplicate (scope, text, event time) was already live: nothing
                         ///< was written
};

struct FactPatch {
  std::optional<std::string> text;
  std::optional<std::string> metadata;
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  std::optional<std::uint32_t> if_version;  ///< kConflict when the live version differs
  TextVectors vectors;  ///< of the new text; ignored when the text does not change
};

/// The record that stands for (fact version, model fingerprint). `context` is the configured
/// spelling of the encode context ("window:8"); context_id pins what was really seen.
struct RecordEntry {
  FactRef fact;  ///< empty id for header records
  Hash128 model_fingerprint;
  std::string context;
  RecordKey key;
  Hash128 context_id;
  Hash128 scope;  ///< scope_hash in the record
  std::uint32_t n_tokens = 0;
  /// It saw something that was superseded since, or is to be made anew: usable until then. Set by
  /// reads, ignored by commits.
  bool stale = false;
  std::vector<FactRef>
      attended_facts;  ///< as text or as KV: deleting one of them drops this record
  std::vector<std::string> attended_turns;
  /// Records whose KV was injected as context: what they saw, this record saw too.
  std::vector<RecordKey> attended_records;
};

/// Vectors of the live facts of a scope, for an in-memory index.
struct VectorRows {
  std::size_t dim = 0;
  std::vector<std::string> fact_ids;  ///< [rows]; a fact with several chunks has several rows
  std::vector<float> values;          ///< [rows][dim]
};

struct KeywordHit {
  std::string fact_id;
  double score = 0;  ///< BM25, larger is better
};

struct FactPage {
  std::vector<Fact> facts;  ///< in ingest order
  std::string next_cursor;  ///< empty at the end; opaque and stable under concurrent writes
};

/// Which facts `facts_to_encode` gives.
struct EncodeQuery {
  Hash128 model_fingerprint;
  std::string context;
  std::int64_t after_sequence = 0;
  /// Leaves out facts that failed and are not to be tried yet, or never; unset: leaves none out.
  std::optional<TimestampUs> due_at;
};

struct EncodePage {
  std::vector<Fact> facts;
  std::size_t without_record = 0;  ///< the first so many; the others' records are outdated
};

/// The last failure to encode a fact version under a model and context. Kept until it is encoded,
/// changed or erased.
struct EncodeFailure {
  FactRef fact;
  Hash128 model_fingerprint;
  std::string context;
  std::uint32_t attempts = 0;  ///< in a row
  TimestampUs last_try = 0;
  std::optional<TimestampUs> next_try;  ///< unset: given up
  std::string error;
};
/// A `next_try` further ahead than this was set by a clock that has been set back since: it is due.
inline constexpr TimestampUs kMaxEncodeRetryUs = TimestampUs{2} * 3600 * 1'000'000;

struct EncodeFailureCounts {
  std::uint64_t waiting = 0;
  std::uint64_t given_up = 0;
  std::optional<TimestampUs> next_try;  ///< the earliest
};

struct CatalogCounts {
  std::uint64_t facts = 0, turns = 0, versions = 0, vectors = 0, records = 0, scopes = 0;
};

/// A fact as it was in another catalog; `fact.sequence` is not used.
struct RestoredFact {
  Fact fact;
  std::vector<FactVersion> history;  ///< superseded versions, oldest first
};
struct RestoreOutcome {
  Status status;         ///< ok: it is there now
  std::string id;        ///< under which it is
  bool existed = false;  ///< nothing was written
};
/// What a scope holds, piece by piece; an error ends it.
struct CatalogVisitor {
  std::function<Status(std::uint64_t turns, std::uint64_t facts, std::uint64_t versions)> begin;
  std::function<Status(const Turn&)> turn;
  std::function<Status(const RestoredFact&)> fact;
};

struct RecordPage {
  struct Row {
    std::int64_t row = 0;
    bool stale = false;
    RecordEntry entry;  ///< without what it attended to
  };
  std::vector<Row> rows;
};

}  // namespace inferscale
