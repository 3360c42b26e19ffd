#include "catalog/sqlite/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "catalog/sqlite/fold_case.h"
#include "conformance/catalog_suite.h"

namespace inferscale::sqlite {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::ResultOf;
using ::testing::SizeIs;

class Tokenizer : public ::testing::Test {
 protected:
  Tokenizer() {
    const std::filesystem::path file = directory_.path() / "any.sqlite";
    std::ofstream(file).close();
    connection_ = testing::unwrap(Connection::open(file, Connection::Mode::kReadWrite));
    tokenizer_ = testing::unwrap(KeywordTokenizer::attach(*connection_));
  }

  std::vector<std::string> terms(std::string_view text) {
    std::vector<std::string> result;
    tokenizer_->for_each_term(text, [&](std::string_view term) {
      result.emplace_back(term);
      return true;
    });
    return result;
  }

  testing::CatalogDirectory directory_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<KeywordTokenizer> tokenizer_;
};

TEST_F(Tokenizer, WordsAreFoldedAndStemmed) {
  EXPECT_THAT(terms("Caroline's PAINTINGS, painted!"),
              ElementsAre("carolin", "s", "paint", "paint"));
  EXPECT_THAT(terms("Café Ångström ΟΔΌΣ"), ElementsAre("cafe", "angstrom", "οδόσ"));
  EXPECT_THAT(terms("2025-02-03 e4"), ElementsAre("2025", "02", "03", "e4"));
  EXPECT_THAT(terms(""), IsEmpty());
  EXPECT_THAT(terms(" .,-\"'()*:^{}\t\x1f"), IsEmpty());
}

TEST_F(Tokenizer, ScriptsWithoutSpacesGivePairs) {
  EXPECT_THAT(terms("猫の名前"), ElementsAre("猫", "猫の", "名", "の名", "前", "名前"));
  EXPECT_THAT(terms("ミケ"), ElementsAre("ミケ"));
  EXPECT_THAT(terms("の"), ElementsAre("の")) << "alone, a character is its own term";
  EXPECT_THAT(terms("Python3は楽"), ElementsAre("python3", "楽", "は楽"));
  EXPECT_THAT(terms("한국어"), ElementsAre("한국", "국어"));
  EXPECT_THAT(terms("𠮷野"), ElementsAre("𠮷", "野", "𠮷野"));
}

TEST_F(Tokenizer, VowelSignsBelongToTheirWord) { EXPECT_THAT(terms("हिन्दी भाषा"), SizeIs(2)); }

TEST_F(Tokenizer, MalformedTextSeparatesWords) {
  EXPECT_THAT(terms("a\xFF"
                    "b\xC3\x28"
                    "c\xE4\xBD"),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(terms(std::string_view("a\0b", 3)), ElementsAre("a", "b"));
  EXPECT_THAT(terms(std::string(3000, '\xFF')), IsEmpty());
}

TEST_F(Tokenizer, TermsAreBounded) {
  EXPECT_THAT(terms(std::string(100'000, 'x')), ElementsAre(std::string(kMaxTermBytes, 'x')));
  std::string wide;
  for (int i = 0; i < 1000; ++i) {
    wide += "ю";
  }
  EXPECT_THAT(terms(wide),
              Each(ResultOf([](const std::string& t) { return t.size(); }, kMaxTermBytes)));
}

TEST_F(Tokenizer, VisitorsStopIt) {
  int seen = 0;
  tokenizer_->for_each_term("one two three 猫猫猫", [&](std::string_view) { return ++seen < 2; });
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(tokenizer_->count_terms("one two three"), 3);
}

TEST_F(Tokenizer, OwnerPrefixesAreForTheIndexAlone) {
  EXPECT_THAT(terms("12\x1f"
                    "word"),
              ElementsAre("12", "word"));
  EXPECT_EQ(KeywordTokenizer::index_text(12, "word"),
            "12\x1f"
            "word");
  EXPECT_EQ(KeywordTokenizer::index_term(12, "word"),
            "12\x1f"
            "word");
}

TEST_F(Tokenizer, FunctionWordsAreKnown) {
  EXPECT_TRUE(tokenizer_->is_stop_term(terms("Does").front()));
  EXPECT_TRUE(tokenizer_->is_stop_term(terms("this").front()));
  EXPECT_FALSE(tokenizer_->is_stop_term(terms("sunrise").front()));
}

TEST(FoldCase, FoldsWithoutALocale) {
  EXPECT_EQ(fold_case("ŁÓDŹ ÅÄÖ ẞ ΑΒΓ ЁЖ Ÿ ĳ × 猫"), "łódź åäö ẞ αβγ ёж ÿ ĳ × 猫");
  EXPECT_EQ(fold_case("\xC5"), "\xC5");
  EXPECT_EQ(fold_case(""), "");
}

}  // namespace
}  // namespace inferscale::sqlite
