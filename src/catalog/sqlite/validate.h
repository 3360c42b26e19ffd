#pragma once

#include <string>
#include <string_view>

#include "base/scope_check.h"
#include "catalog/catalog.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

// Checks of what callers hand in. Errors: kInvalidArgument that names the field, with `item`
// ("facts[3]") before it.

/// How far a vector's squared norm may be from 1.
inline constexpr double kNormTolerance = 0.01;

[[nodiscard]] Status check_fact_text(std::string_view item, std::string_view text);
[[nodiscard]] Status check_metadata(std::string_view item, std::string_view metadata);
[[nodiscard]] Status check_time(std::string_view item, std::optional<TimestampUs> time,
                                int offset_minutes);
[[nodiscard]] Status check_vectors(std::string_view item, const TextVectors& vectors);
[[nodiscard]] Status check_new_fact(std::string_view item, const NewFact& fact);
[[nodiscard]] Status check_turn(std::string_view item, const Turn& turn);
[[nodiscard]] Status check_record(const RecordEntry& entry);

/// Whether two metadata texts say the same (order of keys and white space do not count).
[[nodiscard]] bool same_metadata(const std::string& a, const std::string& b);

}  // namespace inferscale::sqlite
