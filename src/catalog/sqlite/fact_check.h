#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "catalog/sqlite/reader_pool.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

/// A fact that does not agree with what is derived from it.
struct BadFact {
  std::int64_t pk = 0;
  std::string id;
  const char* kind = "";
  const char* why = "";
  const char* repair = "";
};

/// Reads every live fact: text and metadata, its hash, its number of words, its scope's hash.
[[nodiscard]] Status for_each_bad_fact(Session& session,
                                       const std::function<void(const BadFact&)>& visit);

/// Calls `visit` with the row of every vector of the right size that has a wrong value.
[[nodiscard]] Status for_each_bad_vector(Connection& connection,
                                         const std::function<void(std::int64_t)>& visit);

/// Writes the hash and the number of words of a fact anew. Errors: kConflict when another fact of
/// the scope says the same.
[[nodiscard]] Status mend_fact(Session& session, std::int64_t fact);

}  // namespace inferscale::sqlite
