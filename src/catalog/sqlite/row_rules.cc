#include "catalog/sqlite/row_rules.h"

namespace inferscale::sqlite {
namespace {

constexpr const char* kEncodeAgain =
    "repair drops the entry and its record; the fact is text until it is encoded again";
constexpr const char* kDropEntry = "INSERT OR IGNORE INTO temp.doomed_records SELECT * FROM ";
constexpr const char* kDropVectors = "DELETE FROM vectors WHERE pk IN ";

constexpr RowRule kRules[] = {
    {"references", "source_of_nothing", "fact_sources", "the fact that cites is not there",
     "repair drops the citation",
     "SELECT c.fact FROM fact_sources c WHERE NOT EXISTS (SELECT 1 FROM facts f"
     " WHERE f.pk = c.fact)",
     "DELETE FROM fact_sources WHERE fact IN "},

    // A version ends where the next begins. A version whose text was erased leaves a gap.
    {"history", "history_interval", "fact_history", "it does not end where the next version begins",
     "repair lets it end there; where it begins later than that, restore a backup",
     "SELECT h.pk FROM fact_history h JOIN facts f ON f.pk = h.fact WHERE h.valid_from > h.valid_to"
     " OR h.valid_to > f.ingest_time OR (h.version = f.version - 1 AND h.valid_to <> f.ingest_time)"
     " OR EXISTS (SELECT 1 FROM fact_history n WHERE n.fact = h.fact AND n.version > h.version"
     "  AND (n.valid_from < h.valid_to"
     "   OR (n.version = h.version + 1 AND n.valid_from <> h.valid_to)))",
     "UPDATE fact_history AS h SET valid_to = coalesce("
     " (SELECT n.valid_from FROM fact_history n WHERE n.fact = h.fact AND n.version > h.version"
     "  ORDER BY n.version LIMIT 1), (SELECT f.ingest_time FROM facts f WHERE f.pk = h.fact))"
     " WHERE pk IN "},
    {"history", "history_version", "fact_history", "as new as the live version, or newer",
     "restore a backup",
     "SELECT h.pk FROM fact_history h JOIN facts f ON f.pk = h.fact"
     " WHERE h.version >= f.version OR h.version < 1",
     nullptr},

    {"keywords", "keyword_counters", "owners", "its counts of facts and words are wrong",
     "repair counts again",
     "SELECT o.pk FROM owners o WHERE live_facts <> (SELECT count(*) FROM scopes s"
     "  JOIN facts f ON f.scope = s.pk WHERE s.owner = o.pk)"
     " OR live_terms <> (SELECT coalesce(sum(f.n_terms), 0) FROM scopes s"
     "  JOIN facts f ON f.scope = s.pk WHERE s.owner = o.pk)",
     "UPDATE owners AS o SET live_facts = (SELECT count(*) FROM scopes s JOIN facts f"
     "  ON f.scope = s.pk WHERE s.owner = o.pk), live_terms = (SELECT coalesce(sum(f.n_terms), 0)"
     "  FROM scopes s JOIN facts f ON f.scope = s.pk WHERE s.owner = o.pk) WHERE pk IN "},

    {"vectors", "vector_size", "vectors", "its size is not that of its chunks",
     "repair drops the vectors; they are made again",
     "SELECT v.pk FROM vectors v LEFT JOIN embedders e ON e.pk = v.embedder WHERE e.pk IS NULL"
     " OR v.chunks < 1 OR length(v.data) <> v.chunks * e.dim * 4",
     kDropVectors},
    {"vectors", "vector_of_nothing", "vectors", "its fact is not there", "repair drops the vectors",
     "SELECT v.pk FROM vectors v WHERE NOT EXISTS (SELECT 1 FROM facts f WHERE f.pk = v.fact)",
     kDropVectors},

    {"records", "record_malformed", "records", "malformed", kEncodeAgain,
     "SELECT r.pk FROM records r WHERE length(r.key) <> 16 OR length(r.fingerprint) <> 16"
     " OR length(r.context_id) <> 16 OR length(r.scope_hash) <> 16 OR r.n_tokens < 1"
     " OR (r.fact IS NULL AND r.version <> 0)",
     kDropEntry},
    {"records", "record_version", "records", "names a version of its fact that never was",
     kEncodeAgain,
     "SELECT r.pk FROM records r LEFT JOIN facts f ON f.pk = r.fact WHERE r.fact IS NOT NULL"
     " AND (f.pk IS NULL OR r.version < 1 OR r.version > f.version)",
     kDropEntry},
    {"records", "record_scope", "records", "of another scope than its fact", kEncodeAgain,
     "SELECT r.pk FROM records r JOIN facts f ON f.pk = r.fact JOIN scopes s ON s.pk = f.scope"
     " WHERE s.hash <> r.scope_hash",
     kDropEntry},
    {"records", "record_attended", "records", "it saw something that is not there", kEncodeAgain,
     "SELECT d.record FROM record_facts d LEFT JOIN facts f ON f.pk = d.fact"
     " WHERE f.pk IS NULL OR d.version < 1 OR d.version > f.version"
     " UNION SELECT d.record FROM record_turns d LEFT JOIN turns t ON t.pk = d.turn"
     " WHERE t.pk IS NULL"
     " UNION SELECT d.record FROM record_records d LEFT JOIN records o ON o.pk = d.seen"
     " WHERE o.pk IS NULL",
     kDropEntry},
    {"records", "record_not_stale", "records",
     "it saw a superseded version of a fact and is not marked as stale",
     "repair marks it; its fact is encoded again",
     "SELECT r.pk FROM records r WHERE r.stale = 0 AND r.retired = 0 AND EXISTS (SELECT 1"
     " FROM record_facts d JOIN facts f ON f.pk = d.fact"
     " WHERE d.record = r.pk AND d.version < f.version)",
     "UPDATE records SET stale = 1 WHERE pk IN "},
    {"records", "record_retired", "records", "retired, and nothing was encoded behind it",
     "repair drops the entry",
     "SELECT r.pk FROM records r WHERE r.retired = 1"
     " AND NOT EXISTS (SELECT 1 FROM record_records e WHERE e.seen = r.pk)",
     kDropEntry},
};

}  // namespace

std::span<const RowRule> row_rules() { return kRules; }

}  // namespace inferscale::sqlite
