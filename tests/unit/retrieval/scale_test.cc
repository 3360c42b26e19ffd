// 100,000 facts in one scope: what the index and the catalog answer stays exact.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "catalog/sqlite/sqlite_catalog.h"
#include "retrieval/retriever.h"
#include "unit/retrieval/fake_embedder.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

constexpr int kFacts = 100'000;
constexpr int kBatch = 10'000;
constexpr int kNeedleEvery = 25'000;

std::string text_of(int i) {
  if (i % kNeedleEvery == 7) {
    return fmt::format("the needle of haystack {} is made of bronze", i);
  }
  return fmt::format("straw {} lies beside straw {} under roof {}", i, i / 3, i % 977);
}

class ScaleTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("inferscale-scale-{}", ::getpid());
    auto opened = open_sqlite_catalog({directory_, 0});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    catalog_ = std::move(opened).value();
    for (int begin = 0; begin < kFacts; begin += kBatch) {
      std::vector<std::string> texts;
      for (int i = begin; i < begin + kBatch; ++i) {
        texts.push_back(text_of(i));
      }
      auto vectors = embedder_.embed(texts);
      std::vector<NewFact> facts(texts.size());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        facts[i].text = texts[i];
        facts[i].vectors = std::move(*vectors[i]);
        values_.insert(values_.end(), facts[i].vectors.values.begin(),
                       facts[i].vectors.values.end());
      }
      const auto added = catalog_->add_facts(facts);
      ASSERT_TRUE(added.ok()) << added.status().to_string();
    }
  }
  void TearDown() override {
    catalog_.reset();
    fs::remove_all(directory_);
  }

  std::vector<float> exact_scores(const std::string& query) {
    const auto vector = embedder_.embed(std::span(&query, 1))[0];
    std::vector<float> scores(kFacts);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      for (std::size_t d = 0; d < FakeEmbedder::kDim; ++d) {
        scores[i] += values_[i * FakeEmbedder::kDim + d] * vector->values[d];
      }
    }
    std::sort(scores.begin(), scores.end(), std::greater<>());
    return scores;
  }

  fs::path directory_;
  FakeEmbedder embedder_;
  std::unique_ptr<Catalog> catalog_;
  std::vector<float> values_;
};

TEST_F(ScaleTest, SearchStaysExact) {
  Retriever retriever(*catalog_, &embedder_);
  const std::string query = "needle of bronze";
  for (const RetrievalMode mode : {RetrievalMode::kFused, RetrievalMode::kKeyword}) {
    const auto result = retriever.search({Scope(), query, kFacts / kNeedleEvery, Filter(), mode});
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_EQ(result->facts.size(), std::size_t{kFacts / kNeedleEvery});
    for (const RetrievedFact& found : result->facts) {
      EXPECT_NE(found.fact.text.find("needle"), std::string::npos) << found.fact.text;
    }
  }
  const auto scores = exact_scores(query);
  const auto result = retriever.search({Scope(), query, 500, Filter(), RetrievalMode::kVector});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_EQ(result->facts.size(), 500U);
  for (std::size_t i = 0; i < 500; ++i) {
    ASSERT_NEAR(result->facts[i].vector_score, scores[i], 1e-5) << i;
  }
}

}  // namespace
}  // namespace inferscale
