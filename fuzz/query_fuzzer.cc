#include <stdlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "catalog/filter.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "inferscale/types.h"
#include "reader_choice.h"

/// What a user may type as a query, a filter or a scope is data: it finds something, or it is
/// refused with kInvalidArgument; it is never query syntax and never breaks the catalog.

namespace {

using namespace inferscale;  // NOLINT: a program of its own

void require(bool condition) {
  if (!condition) {
    abort();
  }
}

bool accepted_or_refused(const Status& status) {
  return status.ok() || status.code() == StatusCode::kInvalidArgument;
}

constexpr std::array<const char*, 5> kTexts = {"Mara adopted a whippet",
                                               "Teo's tortoise \"Gustav\"", "NEAR(a b) OR *",
                                               "日本語の鳥", "tabs and -minus AND"};

/// A catalog with a few facts, made once.
class Fixture {
 public:
  Fixture() : directory_(std::filesystem::temp_directory_path() / "inferscale-query-XXXXXX") {
    std::string name = directory_.string();
    require(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    auto opened = open_sqlite_catalog({directory_});
    require(opened.ok());
    catalog_ = std::move(opened).value();
    for (const char* text : kTexts) {
      NewFact fact;
      fact.text = text;
      fact.metadata = R"({"city":"Graz","score":3,"tags":["a","b"]})";
      require(catalog_->add_facts(std::span(&fact, 1)).ok());
    }
  }
  ~Fixture() {
    catalog_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  [[nodiscard]] Catalog& catalog() { return *catalog_; }
  /// Whether the catalog still holds what was put in: looked at once in a while, since it costs
  /// more than a query and nothing that was broken comes back.
  void check_unbroken() {
    constexpr unsigned kEvery = 64;
    if (inputs_++ % kEvery == 0) {
      const Result<CatalogCounts> counts = catalog_->counts_all();
      require(counts.ok() && counts->facts == kTexts.size());
    }
  }

 private:
  unsigned inputs_ = 0;
  std::filesystem::path directory_;
  std::unique_ptr<Catalog> catalog_;
};

void search(std::string_view text, Catalog& catalog) {
  require(accepted_or_refused(catalog.keyword_search(Scope{}, text, 10).status()));
}

void filter(std::string_view text, Catalog& catalog) {
  const Result<Filter> filter = parse_filter(text);
  require(accepted_or_refused(filter.status()));
  if (filter.ok()) {
    require(accepted_or_refused(catalog.matching_ids(Scope{}, *filter).status()));
  }
}

void scope(std::string_view text) {
  const Result<Scope> scope = parse_scope(text);
  require(accepted_or_refused(scope.status()));
  if (scope.ok()) {
    const Result<Scope> again = parse_scope(to_string(*scope));
    require(again.ok() && *again == *scope);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fixture fixture;
  constexpr std::uint8_t kReaders = 3;
  reader_choice::dispatch(data, size, kReaders, [](std::uint8_t reader, std::string_view text) {
    if (reader == 0) {
      search(text, fixture.catalog());
    } else if (reader == 1) {
      filter(text, fixture.catalog());
    } else {
      scope(text);
    }
  });
  fixture.check_unbroken();
  return 0;
}
