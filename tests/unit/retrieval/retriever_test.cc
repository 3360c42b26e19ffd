#include "retrieval/retriever.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "catalog/sqlite/sqlite_catalog.h"
#include "unit/retrieval/fake_embedder.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Scope scope_of(const std::string& user, const std::string& agent = "",
               const std::string& run = "") {
  return Scope{"default", user, agent, run};
}

const Scope kAlice = scope_of("alice");

class RetrieverTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("inferscale-retriever-{}", ::getpid());
    fs::remove_all(directory_);
    auto opened = open_sqlite_catalog({.directory = directory_});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    catalog_ = std::move(opened).value();
    retriever_ = std::make_unique<Retriever>(*catalog_, &embedder_);
  }
  void TearDown() override {
    retriever_.reset();
    catalog_.reset();
    fs::remove_all(directory_);
  }

  std::string add(const std::string& text, const Scope& scope = kAlice) {
    return add_all({text}, scope)[0];
  }

  /// In one transaction. `metadata` gives that of the i-th.
  std::vector<std::string> add_all(
      const std::vector<std::string>& texts, const Scope& scope = kAlice,
      const std::function<std::string(std::size_t)>& metadata = [](std::size_t) { return "{}"; }) {
    std::vector<NewFact> facts(texts.size());
    auto vectors = embedder_.embed(texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      facts[i].scope = scope;
      facts[i].text = texts[i];
      facts[i].metadata = metadata(i);
      if (vectors[i].ok()) {
        facts[i].vectors = *vectors[i];
      }
    }
    const auto added = catalog_->add_facts(facts);
    EXPECT_TRUE(added.ok()) << added.status().to_string();
    std::vector<std::string> ids;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      ids.push_back((*added)[i].id);
      retriever_->on_added(scope, ids.back(), facts[i].vectors);
    }
    return ids;
  }

  static std::vector<std::string> numbered(const std::string& text, int count) {
    std::vector<std::string> texts;
    for (int i = 0; i < count; ++i) {
      texts.push_back(fmt::format("{} {}", text, i));
    }
    return texts;
  }

  void remove(const std::string& id, const Scope& scope = kAlice) {
    ASSERT_TRUE(catalog_->erase_facts(scope, std::span(&id, 1), false).ok());
    retriever_->on_removed(scope, id);
  }

  std::vector<std::string> texts(const RetrievalRequest& request) {
    const auto result = retriever_->search(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    std::vector<std::string> found;
    for (const RetrievedFact& fact : result.ok() ? result->facts : std::vector<RetrievedFact>()) {
      found.push_back(fact.fact.text);
    }
    return found;
  }

  StatusCode code(const RetrievalRequest& request) {
    return retriever_->search(request).status().code();
  }

  fs::path directory_;
  std::unique_ptr<Catalog> catalog_;
  FakeEmbedder embedder_;
  std::unique_ptr<Retriever> retriever_;
};

TEST_F(RetrieverTest, AnEmptyStoreGivesAnEmptyResult) {
  for (const RetrievalMode mode :
       {RetrievalMode::kFused, RetrievalMode::kVector, RetrievalMode::kKeyword}) {
    EXPECT_THAT(texts({.scope = kAlice, .query = "anything", .mode = mode}), IsEmpty());
  }
}

TEST_F(RetrieverTest, RefusesWhatIsNotAQuery) {
  EXPECT_EQ(code({.scope = kAlice, .query = ""}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scope = kAlice, .query = " \n\t "}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scope = kAlice, .query = "\xff"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scope = kAlice, .query = std::string(kMaxQueryBytes + 1, 'a')}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scope = kAlice, .query = "q", .k = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scope = kAlice, .query = "q", .k = kMaxRetrieved + 1}),
            StatusCode::kInvalidArgument);
}

TEST_F(RetrieverTest, FusedScoresAreTheReciprocalRanksOfBothRankings) {
  add_all(numbered("filler about the weather in town", 30));
  add("Mara adopted a cat called Pixel");
  add("the cat of Teo");
  const RetrievalRequest request{.scope = kAlice, .query = "cat called Pixel", .k = 20};
  const auto ranked = [&](RetrievalMode mode) {
    RetrievalRequest single = request;
    single.mode = mode;
    single.k = 60;
    return texts(single);
  };
  const auto vector = ranked(RetrievalMode::kVector);
  const auto keyword = ranked(RetrievalMode::kKeyword);
  EXPECT_EQ(vector.size(), 32U);
  ASSERT_EQ(keyword.size(), 2U);
  const auto result = retriever_->search(request);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->vector_used);
  EXPECT_THAT(result->note, IsEmpty());
  ASSERT_EQ(result->facts.size(), 20U);
  EXPECT_EQ(result->facts[0].fact.text, "Mara adopted a cat called Pixel");
  const FusionWeights weights;
  const auto share = [&](const std::vector<std::string>& ranking, double weight,
                         const std::string& text) {
    const auto place = std::find(ranking.begin(), ranking.end(), text);
    return place == ranking.end()
               ? 0.0
               : weight / (weights.k0 + 1 + static_cast<double>(place - ranking.begin()));
  };
  for (const RetrievedFact& fact : result->facts) {
    EXPECT_NEAR(fact.score,
                share(vector, weights.vector, fact.fact.text) +
                    share(keyword, weights.keyword, fact.fact.text),
                1e-12);
  }
}

TEST_F(RetrieverTest, KeepsWhatOnlyKeywordsFind) {
  embedder_.broken = true;
  add("the invoice number is QX7741");  // its vectors are missing
  embedder_.broken = false;
  add("something else entirely");
  const auto result = retriever_->search({.scope = kAlice, .query = "QX7741"});
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->facts.size(), 2U);
  const auto invoice = std::find_if(
      result->facts.begin(), result->facts.end(),
      [](const RetrievedFact& fact) { return fact.fact.text == "the invoice number is QX7741"; });
  ASSERT_NE(invoice, result->facts.end());
  EXPECT_EQ(invoice->vector_score, 0);
  EXPECT_GT(invoice->keyword_score, 0);
}

TEST_F(RetrieverTest, WorksOnKeywordsAloneWhenEmbeddingFailsAndSaysSo) {
  add("Mara adopted a cat");
  add("Teo has a dog");
  embedder_.broken = true;
  const auto result = retriever_->search({.scope = kAlice, .query = "whose cat"});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->vector_used);
  EXPECT_THAT(result->note, HasSubstr("the embedder is broken"));
  ASSERT_EQ(result->facts.size(), 1U);
  EXPECT_EQ(result->facts[0].fact.text, "Mara adopted a cat");
  EXPECT_EQ(code({.scope = kAlice, .query = "cat", .mode = RetrievalMode::kVector}),
            StatusCode::kUnavailable);
}

TEST_F(RetrieverTest, WorksWithoutAnEmbedder) {
  add("Mara adopted a cat");
  Retriever keywords_only(*catalog_, nullptr);
  keywords_only.on_added(kAlice, "unknown", {});
  keywords_only.on_removed(kAlice, "unknown");
  keywords_only.on_scope_erased(kAlice);
  const auto result = keywords_only.search({.scope = kAlice, .query = "cat"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->facts.size(), 1U);
  EXPECT_FALSE(result->vector_used);
  EXPECT_FALSE(result->note.empty());
  EXPECT_EQ(keywords_only.search({.scope = kAlice, .query = "cat", .mode = RetrievalMode::kVector})
                .status()
                .code(),
            StatusCode::kUnavailable);
}

TEST_F(RetrieverTest, SeesEveryWriteAtOnce) {
  const RetrievalRequest request{.scope = kAlice, .query = "Mara cat"};
  EXPECT_THAT(texts(request), IsEmpty());
  const std::string id = add("Mara has a cat");
  EXPECT_THAT(texts(request), ElementsAre("Mara has a cat"));

  const std::string moved = "Mara gave her cat away";
  const TextVectors vectors = embedder_.embed(std::span(&moved, 1))[0].value();
  FactPatch patch;
  patch.text = moved;
  patch.vectors = vectors;
  ASSERT_TRUE(catalog_->update_fact(kAlice, id, patch).ok());
  retriever_->on_added(kAlice, id, vectors);
  EXPECT_THAT(texts(request), ElementsAre(moved));

  remove(id);
  EXPECT_THAT(texts(request), IsEmpty());

  add("Mara has a dog");
  ASSERT_TRUE(catalog_->erase_scope(kAlice).ok());
  retriever_->on_scope_erased(kAlice);
  EXPECT_THAT(texts({.scope = kAlice, .query = "Mara dog"}), IsEmpty());
}

TEST_F(RetrieverTest, AFactDeletedBehindItsBackGivesItsPlaceToTheNext) {
  const auto ids = add_all(numbered("the cat number", 6));
  ASSERT_EQ(texts({.scope = kAlice, .query = "the cat number", .k = 3}).size(), 3U);
  ASSERT_TRUE(
      catalog_->erase_facts(kAlice, std::span(ids).first(3), false).ok());  // the index is not told
  EXPECT_EQ(texts({.scope = kAlice, .query = "the cat number", .k = 3}).size(), 3U);
}

TEST_F(RetrieverTest, ScopesSeeWhatTheyMayAndNothingElse) {
  add("cat of alice");
  add("cat of alice told to the tutor", scope_of("alice", "tutor"));
  add("cat of alice told in run one", scope_of("alice", "tutor", "one"));
  add("cat of bob", scope_of("bob"));
  add("cat of a foreign alice", Scope{"other", "alice", "", ""});
  const auto found = [&](const Scope& scope) {
    std::set<std::string> all;
    for (const RetrievalMode mode :
         {RetrievalMode::kFused, RetrievalMode::kVector, RetrievalMode::kKeyword}) {
      const auto some = texts({.scope = scope, .query = "cat", .k = 50, .mode = mode});
      all.insert(some.begin(), some.end());
    }
    return all;
  };
  EXPECT_EQ(found(kAlice).size(), 3U);
  EXPECT_EQ(
      found(scope_of("alice", "tutor")),
      (std::set<std::string>{"cat of alice told to the tutor", "cat of alice told in run one"}));
  EXPECT_EQ(found(scope_of("alice", "", "one")),
            (std::set<std::string>{"cat of alice told in run one"}));
  EXPECT_EQ(found(scope_of("bob")), (std::set<std::string>{"cat of bob"}));
  EXPECT_EQ(found(scope_of("carol")), (std::set<std::string>{}));
}

TEST_F(RetrieverTest, FiltersNarrowBothRankings) {
  add_all(numbered("the cat number", 400), kAlice,
          [](std::size_t i) { return fmt::format(R"({{"n":{}}})", i); });
  const auto filter = parse_filter(R"({"n":{"in":[17,399]}})");
  ASSERT_TRUE(filter.ok()) << filter.status().to_string();
  for (const RetrievalMode mode :
       {RetrievalMode::kFused, RetrievalMode::kVector, RetrievalMode::kKeyword}) {
    auto found = texts(
        {.scope = kAlice, .query = "the cat number 3", .k = 10, .filter = *filter, .mode = mode});
    std::sort(found.begin(), found.end());
    EXPECT_THAT(found, ElementsAre("the cat number 17", "the cat number 399"));
  }
  const auto nothing = parse_filter(R"({"n":-1})");
  ASSERT_TRUE(nothing.ok());
  EXPECT_THAT(texts({.scope = kAlice, .query = "cat", .filter = *nothing}), IsEmpty());
}

TEST_F(RetrieverTest, EqualScoresPutTheNewerFactFirst) {
  // The same words at different times: same vector, same BM25.
  std::vector<NewFact> facts;
  const std::string text = "lunch was soup";
  for (int day = 0; day < 5; ++day) {
    NewFact& fact = facts.emplace_back();
    fact.scope = kAlice;
    fact.text = text;
    fact.event_time = day * 86'400'000'000LL;
    fact.vectors = embedder_.embed(std::span(&text, 1))[0].value();
  }
  ASSERT_TRUE(catalog_->add_facts(facts).ok());
  for (const RetrievalMode mode : {RetrievalMode::kVector, RetrievalMode::kKeyword}) {
    const auto result =
        retriever_->search({.scope = kAlice, .query = "soup", .k = 3, .mode = mode});
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->facts.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(result->facts[i].fact.event_time,
                static_cast<TimestampUs>(4 - i) * 86'400'000'000LL);
    }
  }
}

TEST_F(RetrieverTest, AnyTextIsAQuery) {
  add("a perfectly ordinary fact about O'Brien");
  const std::string hostile[] = {"\"",
                                 "'",
                                 "' OR 1=1 --",
                                 "\"unclosed",
                                 "a AND",
                                 "NOT",
                                 "NEAR(a b, 2)",
                                 "text:*",
                                 "* ^ - + : ( ) { }",
                                 "fact*",
                                 "{fact}: (",
                                 "\\",
                                 "%_",
                                 "facts MATCH 'x'",
                                 "; DROP TABLE facts; --",
                                 "[CLS] <|im_start|>",
                                 std::string("nul\0byte", 8),
                                 "\xEF\xBF\xBF\xEF\xBB\xBF",
                                 "日本語の質問",
                                 "🎉🚀",
                                 "\u202E\u200B",
                                 "a\nb\tc"};
  for (const std::string& query : hostile) {
    for (const RetrievalMode mode : {RetrievalMode::kFused, RetrievalMode::kKeyword}) {
      const auto result = retriever_->search({.scope = kAlice, .query = query, .mode = mode});
      EXPECT_TRUE(result.ok()) << query << ": " << result.status().to_string();
    }
  }
  EXPECT_EQ(texts({.scope = kAlice, .query = "O'Brien"}).size(), 1U);
}

TEST_F(RetrieverTest, AMegabyteOfQueryIsAnsweredFromItsBeginning) {
  add("the cat sat on the mat");
  std::string query = "the cat sat on the mat";
  while (query.size() + 8 < kMaxQueryBytes) {
    query += " zażółć";
  }
  const auto result = retriever_->search({.scope = kAlice, .query = query});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_EQ(result->facts.size(), 1U);
  EXPECT_THAT(result->note, HasSubstr("bytes"));
  EXPECT_LE(embedder_.longest_text, 8192U);
}

TEST_F(RetrieverTest, SearchesAndWritesAtTheSameTime) {
  std::vector<std::thread> threads;
  std::atomic<bool> stop = false;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        for (const std::string& text :
             texts({.scope = kAlice, .query = "the cat number 5", .k = 20})) {
          ASSERT_THAT(text, HasSubstr("cat"));
        }
      }
    });
  }
  std::vector<std::string> ids;
  for (int i = 0; i < 40; ++i) {
    ids.push_back(add(fmt::format("the cat number {}", i)));
    add(fmt::format("the dog number {}", i), scope_of("bob"));
    if (i % 3 == 0) {
      remove(ids[ids.size() / 2]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(ids.size() / 2));
    }
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(texts({.scope = kAlice, .query = "the cat number", .k = 1000}).size(), ids.size());
}

}  // namespace
}  // namespace inferscale
