// 100,000 facts in one scope. Time limits are generous: they catch a wrong plan, not a slow
// machine.
#include <random>

#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

constexpr std::size_t kFacts = 100'000;
constexpr std::size_t kDim = 384;

std::vector<NewFact> make_facts() {
  std::mt19937 random(3);
  const char* const words[] = {"lake",  "sunrise", "painting", "dinner", "mother", "brother",
                               "house", "moved",   "loves",    "city",   "dog",    "garden"};
  std::vector<NewFact> facts(kFacts);
  for (std::size_t i = 0; i < kFacts; ++i) {
    NewFact& item = facts[i];
    item.text = "Caroline number " + std::to_string(i);
    for (int w = 0; w < 8; ++w) {
      item.text += std::string(" ") + words[random() % 12];
    }
    item.metadata = "{\"n\":" + std::to_string(i % 100) + "}";
    item.vectors = TextVectors{"scale/384", kDim, std::vector<float>(kDim, 0.0F)};
    item.vectors.values[i % kDim] = 1.0F;
  }
  return facts;
}

TEST(SqliteScale, AHundredThousandFactsInOneScope) {
  const CatalogDirectory directory;
  const auto catalog = unwrap(open_sqlite_catalog({directory.path(), 0}));
  const std::vector<NewFact> facts = make_facts();
  const std::vector<AddOutcome> outcomes = unwrap(catalog->add_facts(facts));
  Stopwatch watch;
  const auto took = [&watch](const char* what, double limit_ms) {
    EXPECT_LT(watch.elapsed_ms(), limit_ms) << what;
    std::printf("%s: %.1f ms\n", what, watch.elapsed_ms());
    watch.restart();
  };

  const auto hits = unwrap(catalog->keyword_search(Scope(), "Where is number 77777?", 50));
  took("keyword_search, one rare word", 2000);
  EXPECT_EQ(hits.front().fact_id, outcomes[77'777].id);
  EXPECT_EQ(unwrap(catalog->keyword_search(Scope(), "Caroline loves dog", 50)).size(), 50U);
  took("keyword_search, common words", 4000);

  const VectorRows rows = unwrap(catalog->vectors(Scope(), "scale/384"));
  took("vectors", 8000);
  ASSERT_EQ(rows.fact_ids.size(), kFacts);
  EXPECT_EQ(rows.fact_ids[12'345], outcomes[12'345].id);
  EXPECT_EQ(rows.values[12'345 * kDim + 12'345 % kDim], 1.0F);

  std::string cursor;
  std::size_t listed = 0;
  do {
    const FactPage page = unwrap(catalog->list_facts(Scope(), Filter(), 10'000, cursor));
    listed += page.facts.size();
    cursor = page.next_cursor;
  } while (!cursor.empty());
  EXPECT_EQ(listed, kFacts);
  took("all pages", 20'000);
  EXPECT_EQ(unwrap(catalog->list_facts(Scope(), Filter(), 10, "s90000")).facts.size(), 10U);
  took("one page", 500);

  const Filter filter = unwrap(parse_filter(R"({"n":{"gte":99}})"));
  EXPECT_EQ(unwrap(catalog->matching_ids(Scope(), filter)).size(), kFacts / 100);
  took("matching_ids", 4000);

  std::vector<std::string> ids;
  for (std::size_t i = 0; i < 1000; ++i) {
    ids.push_back(outcomes[i * 100].id);
  }
  const EraseOutcome erased = unwrap(catalog->erase_facts(Scope(), ids, false));
  EXPECT_TRUE(erased.verified) << erased.note;
  EXPECT_EQ(erased.facts, 1000U);
  EXPECT_EQ(erased.vectors, 1000U);
  took("erase 1,000", 20'000);
  EXPECT_EQ(unwrap(catalog->erase_scope(Scope())).facts, kFacts - 1000);
  took("erase the rest", 60'000);
}

}  // namespace
}  // namespace inferscale::testing
