#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "catalog/catalog.h"

namespace inferscale::testing {

/// A directory that is removed, with what is in it, at the end of the scope.
class CatalogDirectory {
 public:
  CatalogDirectory() {
    std::string name =
        (std::filesystem::temp_directory_path() / "inferscale-catalog-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot create a temporary directory");
    }
    path_ = name;
  }
  ~CatalogDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  CatalogDirectory(const CatalogDirectory&) = delete;
  CatalogDirectory& operator=(const CatalogDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A value, or a failed test that says which error came instead.
template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status().to_string();
    throw std::runtime_error(result.status().to_string());
  }
  return std::move(result).value();
}

inline Scope user_scope(std::string user, std::string agent = "", std::string run = "") {
  return Scope{"default", std::move(user), std::move(agent), std::move(run)};
}

inline Hash128 hash_of(unsigned number) {
  Hash128 hash;
  hash.bytes[0] = static_cast<std::byte>(number >> 8);
  hash.bytes[1] = static_cast<std::byte>(number & 255U);
  return hash;
}

/// `rows` unit vectors of dim 4.
inline TextVectors unit_vectors(std::size_t rows, std::size_t axis = 0,
                                std::string embedder = "test/4") {
  TextVectors vectors{std::move(embedder), 4, std::vector<float>(rows * 4, 0.0F)};
  for (std::size_t row = 0; row < rows; ++row) {
    vectors.values[row * 4 + (axis + row) % 4] = 1.0F;
  }
  return vectors;
}

/// How the suite opens a catalog that keeps its data in a directory (or a database named after it).
struct CatalogBackend {
  std::string name;
  std::function<Result<std::unique_ptr<Catalog>>(const std::filesystem::path&)> open;
};
inline void PrintTo(const CatalogBackend& backend, std::ostream* out) { *out << backend.name; }

/// What every Catalog must do. A backend joins with
///   INSTANTIATE_TEST_SUITE_P(Sqlite, CatalogSuite, ::testing::Values(CatalogBackend{...}));
/// and by linking catalog_suite*.cc.
class CatalogSuite : public ::testing::TestWithParam<CatalogBackend> {
 protected:
  CatalogSuite() { reopen(); }

  void reopen() {
    catalog_.reset();
    catalog_ = unwrap(GetParam().open(directory_.path() / "data"));
  }
  Catalog& catalog() { return *catalog_; }

  static NewFact fact(std::string text, Scope scope = user_scope("alice")) {
    NewFact result;
    result.scope = std::move(scope);
    result.text = std::move(text);
    return result;
  }
  AddOutcome add(const NewFact& item) {
    return unwrap(catalog().add_facts(std::span(&item, 1))).front();
  }
  std::string add(std::string text, Scope scope = user_scope("alice")) {
    return add(fact(std::move(text), std::move(scope))).id;
  }
  Fact get(const std::string& id, const Scope& scope = user_scope("alice")) {
    return unwrap(catalog().get_fact(scope, id));
  }
  Fact set_text(const std::string& id, std::string text) {
    FactPatch patch;
    patch.text = std::move(text);
    return unwrap(catalog().update_fact(user_scope("alice"), id, patch));
  }
  EraseOutcome erase(std::vector<std::string> ids, bool keep_turns = false) {
    return unwrap(catalog().erase_facts(user_scope("alice"), ids, keep_turns));
  }
  std::vector<std::string> found(std::string_view query, const Scope& scope = user_scope("alice")) {
    std::vector<std::string> ids;
    for (const KeywordHit& hit : unwrap(catalog().keyword_search(scope, query, 100))) {
      ids.push_back(hit.fact_id);
    }
    return ids;
  }
  std::vector<std::string> matching(std::string_view filter) {
    return unwrap(catalog().matching_ids(user_scope("alice"), unwrap(parse_filter(filter))));
  }
  std::vector<std::string> texts(const Scope& scope) {
    std::vector<std::string> result;
    for (const Fact& item : unwrap(catalog().list_facts(scope, Filter(), 1000, "")).facts) {
      result.push_back(item.text);
    }
    return result;
  }

  /// An entry for the live version of a fact of alice.
  RecordEntry entry(const std::string& id, unsigned key, std::vector<std::string> attended = {}) {
    RecordEntry result;
    result.fact = {id, get(id).version};
    result.model_fingerprint = kModel;
    result.context = "window:8";
    result.key = RecordKey{hash_of(key)};
    result.context_id = hash_of(key + 1);
    result.scope = scope_hash(user_scope("alice"));
    result.n_tokens = 28;
    for (const std::string& other : attended) {
      result.attended_facts.push_back({other, get(other).version});
    }
    return result;
  }
  std::optional<RecordEntry> record_of(const std::string& id) {
    const FactRef ref{id, get(id).version};
    return unwrap(catalog().records_of(std::span(&ref, 1), kModel)).front();
  }
  std::vector<std::string> to_encode() {
    std::vector<std::string> ids;
    for (const Fact& item :
         unwrap(catalog().facts_to_encode({kModel, "window:8", 0, {}}, 1000)).facts) {
      ids.push_back(item.id);
    }
    return ids;
  }

  const Hash128 kModel = hash_of(7777);

 private:
  CatalogDirectory directory_;
  std::unique_ptr<Catalog> catalog_;
};

/// A few facts whose metadata the filter tests ask for.
class CatalogFilters : public CatalogSuite {
 protected:
  std::string with(std::string text, std::string metadata,
                   std::optional<TimestampUs> event_time = std::nullopt) {
    NewFact item = fact(std::move(text));
    item.metadata = std::move(metadata);
    item.event_time = event_time;
    return add(item).id;
  }
  // Single letters name the facts in expectations.
  const std::string a_ = with("a", R"({"city":"Graz","n":3,"ok":true,"tags":["x","y"]})", 0);
  const std::string b_ =
      with("b", R"({"city":"Łódź","n":3.5,"ok":false,"tags":["y",2]})", 86'400'000'000);
  const std::string c_ = with("c", R"({"city":null,"n":"3","o'k\"":1,"$.a.b":"path"})");
};

inline Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}
inline ::testing::AssertionResult has_code(const Status& status, StatusCode code) {
  return status.code() == code ? ::testing::AssertionSuccess()
                               : ::testing::AssertionFailure() << "got " << status.to_string();
}
#define EXPECT_CODE(expression, expected) \
  EXPECT_TRUE(has_code(status_of(expression), StatusCode::expected))

}  // namespace inferscale::testing
