#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/sqlite/connection.h"
#include "catalog/sqlite/scopes.h"
#include "catalog/sqlite/tokenizer.h"

namespace inferscale::sqlite {

/// A live fact with the keys of its rows.
struct FactRow {
  std::int64_t pk = 0;
  std::int64_t scope = 0;
  std::int64_t owner = 0;
  Fact fact;
  bool sound = true;  ///< it and its citations match their checksums
};

/// Errors: kDataLoss when the row is not sound. To be asked wherever content is read; what erases a
/// fact or only looks for its row does not ask.
[[nodiscard]] Status check_sound(const FactRow& row);

/// By id, whatever its scope; nothing when there is none.
[[nodiscard]] Result<std::optional<FactRow>> find_fact(Connection& connection, std::string_view id);
/// By id, as `request` may see it. Errors: kNotFound (also for other people's facts).
[[nodiscard]] Result<FactRow> readable_fact(Connection& connection, const Scope& request,
                                            std::string_view id);
/// By id, to be changed. Errors: kNotFound; kPermissionDenied for a fact that is shared with the
/// request's scope.
[[nodiscard]] Result<FactRow> writable_fact(Connection& connection, const Scope& request,
                                            std::string_view id);
/// Reads live facts by row key, in the order of `pks`; keys that are gone are left out. Errors:
/// kDataLoss names the first that does not match its checksum.
[[nodiscard]] Result<std::vector<Fact>> load_facts(Connection& connection,
                                                   std::span<const std::int64_t> pks);

/// The superseded versions of a fact, oldest first. Errors: kDataLoss when one does not match its
/// checksum.
[[nodiscard]] Result<std::vector<FactVersion>> load_history(Connection& connection,
                                                            std::int64_t fact);

/// The id of the live fact of this scope with this content_hash; nothing when there is none.
[[nodiscard]] Result<std::optional<std::string>> find_duplicate(Connection& connection,
                                                                std::int64_t scope,
                                                                const Hash128& hash);

/// What makes two facts of a scope the same fact.
[[nodiscard]] Hash128 content_hash(std::string_view text, std::optional<TimestampUs> event_time);
/// A turn of exactly this scope; none when it is not there. Errors: kDataLoss (its checksum).
[[nodiscard]] Result<std::optional<Turn>> find_turn(Connection& connection, const ScopeRow& scope,
                                                    std::string_view id);
/// Leaves a turn of this scope and id that is there already as it is.
[[nodiscard]] Status insert_turn(Connection& connection, std::int64_t scope, const Turn& turn);
[[nodiscard]] Status insert_sources(Connection& connection, std::int64_t fact,
                                    std::span<const std::string> turns);
[[nodiscard]] Status insert_vectors(Connection& connection, std::int64_t fact,
                                    const TextVectors& vectors);
[[nodiscard]] Status index_keywords(Connection& connection, const FactRow& row);
[[nodiscard]] Status unindex_keywords(Connection& connection, const FactRow& row);

}  // namespace inferscale::sqlite
