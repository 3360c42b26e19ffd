#include "catalog/sqlite/validate.h"

#include <fmt/format.h>

#include <cmath>

#include "base/strict_json.h"
#include "base/utf8.h"
#include "catalog/metadata.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kMaxNameBytes = 512;  // turn ids, speakers, roles, embedder ids, contexts
constexpr std::size_t kMaxSourceTurns = 1024;
constexpr std::size_t kMaxDim = 65536;
constexpr std::size_t kMaxVectorValues = std::size_t{1} << 26;
constexpr std::size_t kMaxAttended = 100'000;
constexpr int kMaxOffsetMinutes = 24 * 60 - 1;
// Years 0001 to 9999, what RFC 3339 can write.
constexpr TimestampUs kMinTime = -62'135'596'800LL * 1'000'000;
constexpr TimestampUs kMaxTime = 253'402'300'800LL * 1'000'000 - 1;

/// A short name: not empty, no control characters.
Status check_name(const std::string& field, std::string_view text) {
  INFERSCALE_RETURN_IF_ERROR(check_text(field, text, kMaxNameBytes));
  if (find_line_breaker(text) != std::string_view::npos) {
    return invalid_argument(field + " must not contain control characters");
  }
  return Status();
}

Status check_optional(const std::string& field, std::string_view text, std::size_t max_bytes) {
  return text.empty() ? Status() : check_text(field, text, max_bytes);
}

std::string sub(std::string_view item, std::string_view field) {
  return item.empty() ? std::string(field) : fmt::format("{}.{}", item, field);
}

}  // namespace

Status check_fact_text(std::string_view item, std::string_view text) {
  const std::string field = sub(item, "text");
  INFERSCALE_RETURN_IF_ERROR(check_text(field, text, kMaxFactBytes));
  const std::size_t at = find_line_breaker(text);
  if (at != std::string_view::npos) {
    return invalid_argument(
        fmt::format("{} must be one line without control characters; byte {} is one", field, at));
  }
  return Status();
}

Status check_metadata(std::string_view item, std::string_view metadata) {
  return inferscale::check_metadata(sub(item, "metadata"), metadata);
}

Status check_time(std::string_view item, std::optional<TimestampUs> time, int offset_minutes) {
  if (time && (*time < kMinTime || *time > kMaxTime)) {
    return invalid_argument(sub(item, "event_time") + " must lie in the years 0001 to 9999");
  }
  if (offset_minutes < -kMaxOffsetMinutes || offset_minutes > kMaxOffsetMinutes) {
    return invalid_argument(fmt::format("{} must be from -{} to {} minutes, not {}",
                                        sub(item, "event_offset_minutes"), kMaxOffsetMinutes,
                                        kMaxOffsetMinutes, offset_minutes));
  }
  return Status();
}

Status check_vectors(std::string_view item, const TextVectors& vectors) {
  const std::string field = sub(item, "vectors");
  if (vectors.values.empty()) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(check_name(field + ".embedder_id", vectors.embedder_id));
  if (vectors.dim < 1 || vectors.dim > kMaxDim || vectors.values.size() % vectors.dim != 0 ||
      vectors.values.size() > kMaxVectorValues) {
    return invalid_argument(
        fmt::format("{}: {} values are not whole rows of dim {} (accepted: dim 1 to {})", field,
                    vectors.values.size(), vectors.dim, kMaxDim));
  }
  for (std::size_t row = 0; row < vectors.chunks(); ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < vectors.dim; ++i) {
      const double value = vectors.values[row * vectors.dim + i];
      sum += value * value;
    }
    if (!(std::abs(sum - 1.0) < kNormTolerance)) {  // also catches NaN and infinity
      return invalid_argument(
          fmt::format("{}: row {} has norm {}, it must be 1", field, row, std::sqrt(sum)));
    }
  }
  return Status();
}

Status check_new_fact(std::string_view item, const NewFact& fact) {
  INFERSCALE_RETURN_IF_ERROR(check_scope(item, fact.scope));
  INFERSCALE_RETURN_IF_ERROR(check_fact_text(item, fact.text));
  INFERSCALE_RETURN_IF_ERROR(check_metadata(item, fact.metadata));
  INFERSCALE_RETURN_IF_ERROR(check_time(item, fact.event_time, fact.event_offset_minutes));
  if (fact.source_turns.size() > kMaxSourceTurns) {
    return invalid_argument(fmt::format("{} must have at most {} entries, not {}",
                                        sub(item, "source_turns"), kMaxSourceTurns,
                                        fact.source_turns.size()));
  }
  for (const std::string& turn : fact.source_turns) {
    INFERSCALE_RETURN_IF_ERROR(check_name(sub(item, "source_turns"), turn));
  }
  return check_vectors(item, fact.vectors);
}

Status check_turn(std::string_view item, const Turn& turn) {
  INFERSCALE_RETURN_IF_ERROR(check_scope(item, turn.scope));
  INFERSCALE_RETURN_IF_ERROR(check_name(sub(item, "id"), turn.id));
  INFERSCALE_RETURN_IF_ERROR(check_optional(sub(item, "speaker"), turn.speaker, kMaxNameBytes));
  INFERSCALE_RETURN_IF_ERROR(check_optional(sub(item, "role"), turn.role, kMaxNameBytes));
  INFERSCALE_RETURN_IF_ERROR(check_optional(sub(item, "text"), turn.text, kMaxFactBytes));
  return check_time(item, turn.event_time, turn.event_offset_minutes);
}

Status check_record(const RecordEntry& entry) {
  INFERSCALE_RETURN_IF_ERROR(check_name("record.context", entry.context));
  if (entry.fact.id.empty() && entry.fact.version != 0) {
    return invalid_argument("record.fact.version must be 0 where record.fact.id is empty");
  }
  const std::size_t attended =
      entry.attended_facts.size() + entry.attended_turns.size() + entry.attended_records.size();
  if (attended > kMaxAttended) {
    return invalid_argument(fmt::format("record: attended to {} things, at most {} are accepted",
                                        attended, kMaxAttended));
  }
  return Status();
}

bool same_metadata(const std::string& a, const std::string& b) {
  if (a == b) {
    return true;
  }
  const auto left = nlohmann::json::parse(a, nullptr, false);
  return !left.is_discarded() && left == nlohmann::json::parse(b, nullptr, false);
}

}  // namespace inferscale::sqlite
