// Erased means erased: no byte of it is left in any file of the data directory.
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "catalog/sqlite/scrub_vfs.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

class SqliteEraseBytes : public ::testing::Test {
 protected:
  SqliteEraseBytes() : catalog_(unwrap(open_sqlite_catalog({directory_.path(), 0}))) {}

  /// A word that occurs nowhere else. The index shares beginnings of words, so its end is random.
  std::string make_word() {
    std::string word = "zq";
    for (int i = 0; i < 14; ++i) {
      word += "bcdfghjkmnpqrtvwxz"[random_() % 18];
    }
    return word;
  }

  TextVectors make_vector() {
    TextVectors vector = unit_vectors(1);
    const double angle = static_cast<double>(random_());
    vector.values = {static_cast<float>(std::cos(angle) * 0.8),
                     static_cast<float>(std::sin(angle) * 0.8), 0.6F, 0.0F};
    return vector;
  }

  /// Byte strings of one fact: of its texts, superseded ones too, metadata, turns and vector.
  struct Told {
    std::string id;
    std::set<std::string> words;
  };

  Told tell(const Scope& scope) {
    Told told;
    const auto word = [&] { return *told.words.insert(make_word()).first; };
    NewFact item;
    item.scope = scope;
    item.text = word() + " and " + word() + " 猫" + word();
    item.metadata = R"({"key":")" + word() + "\"}";
    item.source_turns = {word()};
    item.vectors = make_vector();
    const auto* values = reinterpret_cast<const char*>(item.vectors.values.data());
    told.words.emplace(values, 4 * sizeof(float));
    Turn turn{item.source_turns[0], scope, word(), "user", word() + "\n" + word(), 0, 0};
    unwrap(catalog_->add_turns(std::span(&turn, 1)));
    told.id = unwrap(catalog_->add_facts(std::span(&item, 1))).front().id;
    return told;
  }

  void retell(const Scope& scope, Told& told) {
    FactPatch patch;
    patch.text = *told.words.insert(make_word()).first + " instead";
    unwrap(catalog_->update_fact(scope, told.id, patch));
  }

  /// Whatever of `words` is still in some file, in full or by its last eight letters.
  std::vector<std::string> left_of(const std::set<std::string>& words) const {
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
      for (const std::string& word : words) {
        const std::string_view end = std::string_view(word).substr(word.size() - 8);
        if (bytes.find(word.starts_with("zq") ? end : std::string_view(word)) !=
            std::string::npos) {
          left.push_back(entry.path().filename().string() + ": " + word);
        }
      }
    }
    return left;
  }

  /// Pages of the closed file whose unused bytes are not all zero.
  [[nodiscard]] int unscrubbed_pages() const {
    std::ifstream stream(directory_.path() / "catalog.sqlite", std::ios::binary);
    int dirty = 0;
    std::vector<std::byte> page(sqlite::kPageBytes);
    for (bool first = true; stream.read(reinterpret_cast<char*>(page.data()), sqlite::kPageBytes);
         first = false) {
      std::vector<std::byte> clean = page;
      sqlite::scrub_page(clean, first);
      dirty += clean != page ? 1 : 0;
    }
    return dirty;
  }

  CatalogDirectory directory_;
  std::unique_ptr<Catalog> catalog_;
  std::mt19937 random_{20250203};
};

TEST_F(SqliteEraseBytes, TheSearchFindsWhatIsThere) {
  const Told told = tell(Scope());
  EXPECT_FALSE(left_of(told.words).empty());
}

TEST_F(SqliteEraseBytes, OneFactAmongMany) {
  const Scope scope;
  std::vector<Told> facts;
  for (int i = 0; i < 60; ++i) {
    facts.push_back(tell(scope));
  }
  for (int i : {0, 59, 30, 31}) {
    Told& told = facts[static_cast<std::size_t>(i)];
    retell(scope, told);
    const EraseOutcome outcome =
        unwrap(catalog_->erase_facts(scope, std::span(&told.id, 1), false));
    EXPECT_TRUE(outcome.verified) << outcome.note;
    EXPECT_EQ(left_of(told.words), std::vector<std::string>()) << "fact " << i;
  }
  EXPECT_FALSE(left_of(facts[1].words).empty()) << "the others are untouched";
}

TEST_F(SqliteEraseBytes, AWholeScopeWithItsName) {
  const std::string name = make_word();
  const Scope scope = user_scope(name, name, name);
  std::set<std::string> words = {name};
  for (int i = 0; i < 40; ++i) {
    tell(Scope());
    Told told = tell(scope);
    retell(scope, told);
    words.insert(told.words.begin(), told.words.end());
  }
  EXPECT_TRUE(unwrap(catalog_->erase_scope(scope)).verified);
  EXPECT_EQ(left_of(words), std::vector<std::string>());
}

TEST_F(SqliteEraseBytes, RandomHistories) {
  const Scope scopes[] = {user_scope("alice"), user_scope("alice", "tutor"), user_scope("bob")};
  std::map<std::string, std::pair<Scope, Told>> live;
  std::set<std::string> erased;
  for (int step = 0; step < 300; ++step) {
    const unsigned choice = static_cast<unsigned>(random_() % 10);
    if (live.empty() || choice < 5) {
      const Scope& scope = scopes[random_() % 3];
      Told told = tell(scope);
      live[told.id] = {scope, told};
      continue;
    }
    const auto victim = std::next(live.begin(), static_cast<int>(random_() % live.size()));
    auto& [scope, told] = victim->second;
    if (choice < 7) {
      retell(scope, told);
      continue;
    }
    const EraseOutcome outcome =
        unwrap(catalog_->erase_facts(scope, std::span(&told.id, 1), false));
    EXPECT_TRUE(outcome.verified) << outcome.note;
    erased.insert(told.words.begin(), told.words.end());
    live.erase(victim);
    if (step % 10 == 0) {
      ASSERT_EQ(left_of(erased), std::vector<std::string>()) << "step " << step;
    }
  }
  EXPECT_EQ(left_of(erased), std::vector<std::string>());
  for (const auto& [id, entry] : live) {
    EXPECT_EQ(unwrap(catalog_->get_fact(entry.first, id)).id, id);
  }
  catalog_.reset();
  EXPECT_EQ(unscrubbed_pages(), 0);
}

TEST(ScrubPage, ZeroesTheGapAndFreeBlocksOnly) {
  std::vector<std::byte> page(sqlite::kPageBytes, std::byte{0xAA});
  const auto put = [&page](std::size_t at, unsigned value) {
    page[at] = static_cast<std::byte>(value >> 8);
    page[at + 1] = static_cast<std::byte>(value & 255U);
  };
  page[0] = std::byte{13};  // a leaf of a table
  put(1, 3000);             // first free block
  put(3, 2);                // cells
  put(5, 2000);             // where they begin
  put(3000, 0);
  put(3002, 50);
  std::vector<std::byte> expected = page;
  std::fill(expected.begin() + 12, expected.begin() + 2000, std::byte{0});
  std::fill(expected.begin() + 3004, expected.begin() + 3050, std::byte{0});
  sqlite::scrub_page(page, false);
  EXPECT_EQ(page, expected);
}

TEST(ScrubPage, LeavesAloneWhatItDoesNotUnderstand) {
  std::vector<std::byte> page(sqlite::kPageBytes, std::byte{0xFF});
  for (const unsigned type : {0U, 1U, 3U, 13U, 255U}) {  // 13: with impossible numbers
    page[0] = static_cast<std::byte>(type);
    const std::vector<std::byte> before = page;
    sqlite::scrub_page(page, false);
    EXPECT_EQ(page, before) << type;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {  // never outside the page: for the sanitizers to see
    for (std::size_t at = 0; at < 200; ++at) {
      page[at] = static_cast<std::byte>(random());
    }
    page[0] = std::byte{2};
    sqlite::scrub_page(page, i % 2 == 0);
  }
}

}  // namespace
}  // namespace inferscale::testing
