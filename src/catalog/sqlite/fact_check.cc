#include "catalog/sqlite/fact_check.h"

#include <cmath>
#include <cstring>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/validate.h"

namespace inferscale::sqlite {
namespace {

constexpr const char* kRestore = "restore a backup, or write the fact anew (`update`, `delete`)";
constexpr const char* kMend = "repair derives it again from the text";

/// Text, metadata and time as they would be accepted today.
Status check_content(const Statement& row) {
  INFERSCALE_RETURN_IF_ERROR(check_fact_text("", row.text(6)));
  INFERSCALE_RETURN_IF_ERROR(check_metadata("", row.text(7)));
  return check_time("", row.optional_integer(8), static_cast<int>(row.integer(9)));
}

}  // namespace

Status for_each_bad_fact(Session& session, const std::function<void(const BadFact&)>& visit) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      session.connection->prepare(
          "SELECT f.pk, f.id, o.tenant, o.user, s.agent, s.run, f.text, f.metadata, f.event_time,"
          " f.event_offset, f.content_hash, f.n_terms, s.hash, f.version FROM facts f"
          " JOIN scopes s ON s.pk = f.scope JOIN owners o ON o.pk = s.owner ORDER BY f.pk"));
  return statement.for_each([&](const Statement& row) {
    const auto bad = [&](const char* kind, const char* why, const char* repair) {
      visit({row.integer(0), row.text(1), kind, why, repair});
    };
    if (!check_content(row).ok() || row.integer(13) < 1) {
      bad("fact_content", "its text, metadata, time or version is not one that is accepted",
          kRestore);
      return;
    }
    if (content_hash(row.text(6), row.optional_integer(8)) != row.hash(10)) {
      bad("fact_hash", "its hash is not that of its text", kMend);
    } else if (session.tokenizer->count_terms(row.text(6)) != row.integer(11)) {
      bad("fact_words", "its number of words is wrong", kMend);
    }
    if (scope_hash({row.text(2), row.text(3), row.text(4), row.text(5)}) != row.hash(12)) {
      bad("scope_hash", "its scope's hash is not that of its names", "restore a backup");
    }
  });
}

Status for_each_bad_vector(Connection& connection, const std::function<void(std::int64_t)>& visit) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT v.pk, e.dim, v.chunks, v.data FROM vectors v JOIN embedders e"
                         " ON e.pk = v.embedder WHERE v.chunks > 0 AND e.dim > 0"
                         " AND length(v.data) = v.chunks * e.dim * 4"));
  std::vector<float> values;
  return statement.for_each([&](const Statement& row) {
    const std::span<const std::byte> data = row.blob(3);
    const auto dim = static_cast<std::size_t>(row.integer(1));
    values.resize(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), values.size() * sizeof(float));
    for (std::size_t begin = 0; begin + dim <= values.size(); begin += dim) {
      double sum = 0;
      for (std::size_t i = begin; i < begin + dim; ++i) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      if (!(std::abs(sum - 1.0) < kNormTolerance)) {  // also catches NaN and infinity
        visit(row.integer(0));
        return;
      }
    }
  });
}

Status mend_fact(Session& session, std::int64_t fact) {
  Connection& connection = *session.connection;
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT text, event_time, scope FROM facts WHERE pk = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(fact).step());
  if (!found) {
    return Status();
  }
  const std::string text = statement.text(0);
  const Hash128 hash = content_hash(text, statement.optional_integer(1));
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::int64_t others,
      connection.integer(
          "SELECT count(*) FROM facts WHERE scope = ?1 AND content_hash = ?2 AND pk <> ?3",
          statement.integer(2), hash, fact));
  if (others > 0) {
    return conflict("another fact of the scope says the same");
  }
  return connection.run("UPDATE facts SET content_hash = ?2, n_terms = ?3 WHERE pk = ?1", fact,
                        hash, session.tokenizer->count_terms(text));
}

}  // namespace inferscale::sqlite
