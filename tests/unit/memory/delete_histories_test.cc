// Random histories of one service, each delete compared with a plain model of what it ought to
// erase, and the files searched for what it ought to have erased.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/hash.h"
#include "engine/fake_kv.h"
#include "unit/memory/byte_search.h"
#include "unit/memory/delete_model.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

constexpr std::size_t kWordBytes = 16;
constexpr std::size_t kTailBytes = 10;  // the index shares beginnings of words

std::string bytes_of(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

class History {
 public:
  History(const std::string& context, unsigned seed) : random_(seed) {
    rig_.options.encode_context = context;
    rig_.open();
  }

  void step() {
    const unsigned choice = pick(20);
    if (model_.facts.empty() || choice < 7) {
      add();
    } else if (choice < 11) {
      update(any_fact(), pick(2) == 0);
    } else if (choice < 13) {
      encode();
    } else if (choice < 14) {
      ask(make_word());
    } else if (choice < 16) {
      erase_ids();
    } else if (choice < 17) {
      erase_filter();
    } else if (choice < 18) {
      erase_scope();
    } else {
      erase_old();
    }
  }

  /// That the search would find what is not erased.
  void expect_findable() {
    add();
    const DeleteModel::Fact& fact = model_.facts.rbegin()->second;
    encode();
    ByteSearch search;
    forbid(search, fact.versions.back().words);
    std::set<std::string> kinds;
    for (const std::string& hit : search.find_in(rig_.options.directory)) {
      kinds.insert(hit.substr(hit.rfind(' ') + 1));
    }
    EXPECT_EQ(kinds, (std::set<std::string>{"text", "tokens", "keys", "values", "vector", "hash"}));
  }

 private:
  unsigned pick(unsigned n) { return static_cast<unsigned>(random_() % n); }
  bool flip() { return pick(2) == 0; }
  std::string some_scope() { return flip() ? "ana" : "bob"; }
  int any_fact() {
    return std::next(model_.facts.begin(), pick(static_cast<unsigned>(model_.facts.size())))->first;
  }

  std::string make_word() {
    std::string word = "zq";
    while (word.size() < kWordBytes) {
      word += "bcdfghjkmnpqrtvwxz"[pick(18)];
    }
    return word;
  }

  /// The words of a fact version: two of its text and one of its metadata.
  std::string text_of(const std::vector<std::string>& words) { return words[0] + " " + words[1]; }
  std::string metadata_of(const std::string& tag, const std::vector<std::string>& words) {
    return R"({"tag":")" + tag + R"(","word":")" + words[2] + "\"}";
  }

  void add() {
    const std::string scope = some_scope();
    DeleteModel::Fact fact;
    fact.scope = scope;
    fact.tag = "t" + std::to_string(pick(3));
    fact.versions.push_back({{make_word(), make_word(), make_word()}});
    std::vector<TurnInput> turns;
    const auto& known = model_.turns[scope];
    if (!known.empty() && flip()) {
      fact.turns.insert(std::next(known.begin(), pick(static_cast<unsigned>(known.size())))->first);
    }
    if (flip()) {
      const std::string word = make_word();
      turns.push_back({"turn" + std::to_string(++turns_made_), "", "user", word, ""});
      fact.turns.insert(turns.back().id);
      model_.turns[scope][turns.back().id] = word;
      turn_of_word_[word] = turns.back().id;
    }
    const std::vector<std::string>& words = fact.versions.back().words;
    const std::vector<FactInput> facts = {
        {text_of(words), metadata_of(fact.tag, words), "", {fact.turns.begin(), fact.turns.end()}}};
    const auto reply = rig_.service->add(user(scope), turns, facts, flip(), {});
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
    ASSERT_EQ(reply->facts_added, 1U) << reply->note;
    const int name = ++facts_made_;
    ids_[name] = reply->ids.front();
    owner_of_word_[words[0]] = {name, 1};
    model_.facts[name] = std::move(fact);
    note_encoding();
  }

  void update(int name, bool wait) {
    DeleteModel::Fact& fact = model_.facts[name];
    fact.versions.push_back({{make_word(), make_word(), make_word()}});
    ++fact.archived;
    const std::vector<std::string>& words = fact.versions.back().words;
    owner_of_word_[words[0]] = {name, fact.live()};
    UpdateRequest request;
    request.scope = user(fact.scope);
    request.id = ids_[name];
    request.text = text_of(words);
    request.metadata = metadata_of(fact.tag, words);
    const auto updated = rig_.service->update(request, wait, {});
    ASSERT_TRUE(updated.ok()) << updated.status().to_string();
    note_encoding();
  }

  void encode() {
    ASSERT_TRUE(rig_.service->encode_pending({}).ok());
    note_encoding();
  }

  /// Reads from the engine's own account which facts were encoded behind what.
  void note_encoding() {
    if (rig_.engine == nullptr) {
      return;
    }
    for (const FakeCall& call : rig_.engine->calls()) {
      if (call.captures == 0 || call.max_tokens > 0) {
        continue;
      }
      note_prefixes(call);
      const DeleteModel::Record before = seen_in(call);
      for (const std::vector<TokenId>& branch : call.branches) {
        DeleteModel::Record record = before;
        const auto encoded = versions_in(text_of(branch));
        ASSERT_GE(encoded.size(), 1U);
        for (const auto& [name, version] : encoded) {
          record.version = version;
          model_.facts.at(name).record = record;
          record.saw.emplace(name, version);  // the next one of a chain has seen it
        }
      }
    }
    rig_.engine->clear_calls();
  }

  /// Header, and header with primer lines: a record each once they were prefilled.
  void note_prefixes(const FakeCall& call) {
    if (!call.segments.empty()) {
      prefixes_.insert(text_of(call.segments.front()));
      prefixes_.insert(header_of(call));
    }
  }

  static std::string header_of(const FakeCall& call) {
    const std::string start = text_of(call.segments.front());
    return start.substr(0, start.find("remember:\n") + 10);
  }

  static std::string text_of(const std::vector<TokenId>& tokens) {
    FakeCall part;
    part.branches = {tokens};
    return prompt_text(part);
  }

  /// What stands before the branches; of injected facts also what their records saw.
  DeleteModel::Record seen_in(const FakeCall& call) const {
    DeleteModel::Record seen;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const std::string text = text_of(call.segments[i]);
      for (const auto& [name, version] : versions_in(text)) {
        seen.saw.emplace(name, version);
        const auto& record = model_.facts.at(name).record;
        if (call.injected[i] && record) {
          seen.saw.insert(record->saw.begin(), record->saw.end());
          seen.saw_turns.insert(record->saw_turns.begin(), record->saw_turns.end());
        }
      }
      for (const std::string& word : words_in(text)) {
        const auto turn = turn_of_word_.find(word);
        if (turn != turn_of_word_.end()) {
          seen.saw_turns.insert(turn->second);
        }
      }
    }
    return seen;
  }

  static std::vector<std::string> words_in(const std::string& text) {
    std::vector<std::string> words;
    for (std::size_t at = text.find("zq"); at != std::string::npos; at = text.find("zq", at + 1)) {
      words.push_back(text.substr(at, kWordBytes));
    }
    return words;
  }

  /// In the order in which they stand there.
  std::vector<std::pair<int, std::size_t>> versions_in(const std::string& text) const {
    std::vector<std::pair<int, std::size_t>> versions;
    for (const std::string& word : words_in(text)) {
      const auto found = owner_of_word_.find(word);
      if (found != owner_of_word_.end()) {
        versions.push_back(found->second);
      }
    }
    return versions;
  }

  // --- deletes ---

  void erase_ids() {
    DeleteRequest request;
    std::set<int> doomed = {any_fact()};
    const std::string scope = model_.facts[*doomed.begin()].scope;
    for (const auto& [name, fact] : model_.facts) {
      if (fact.scope == scope && pick(5) == 0) {
        doomed.insert(name);
      }
    }
    request.scope = user(scope);
    for (const int name : doomed) {
      request.ids.push_back(ids_[name]);
    }
    request.keep_turns = pick(4) == 0;
    run(request, [&] { return model_.erase(doomed, {}, request.keep_turns); });
  }

  void erase_filter() {
    DeleteRequest request;
    const std::string scope = some_scope();
    const std::string tag = "t" + std::to_string(pick(3));
    std::set<int> doomed;
    for (const auto& [name, fact] : model_.facts) {
      if (fact.scope == scope && fact.tag == tag) {
        doomed.insert(name);
      }
    }
    request.scope = user(scope);
    request.filter = R"({"tag":")" + tag + "\"}";
    request.keep_turns = pick(4) == 0;
    run(request, [&] { return model_.erase(doomed, {}, request.keep_turns); });
  }

  void erase_scope() {
    DeleteRequest request;
    const std::string scope = some_scope();
    std::set<int> doomed;
    for (const auto& [name, fact] : model_.facts) {
      if (fact.scope == scope) {
        doomed.insert(name);
      }
    }
    request.scope = user(scope);
    request.all_in_scope = true;
    request.keep_turns = pick(4) == 0;
    run(request, [&] { return model_.erase(doomed, scope, request.keep_turns); });
  }

  void erase_old() {
    const int name = any_fact();
    if (flip()) {  // while records that saw the old version are in use
      encode();
      update(name, false);
    }
    DeleteRequest request = delete_ids(user(model_.facts[name].scope), {ids_[name]});
    request.old_versions = true;
    run(request, [&] { return model_.erase_old({name}); });
  }

  template <typename Expect>
  void run(const DeleteRequest& request, Expect expect) {
    const bool wait = flip();
    if (pick(3) == 0) {
      DeleteRequest dry = request;
      dry.dry_run = true;
      counted_ = rig_.remove(dry, true);
    } else {
      counted_.reset();
    }
    const DeleteReceipt receipt = rig_.remove(request, wait);
    const DeleteModel::Receipt expected = expect();
    compare(receipt, expected, wait);
    note_encoding();
    forbid(forbidden_, expected.words);
    forbidden_words_.insert(forbidden_words_.end(), expected.words.begin(), expected.words.end());
    look_for_traces();
  }

  void compare(const DeleteReceipt& receipt, const DeleteModel::Receipt& expected, bool wait) {
    const auto check = [&](const DeleteReceipt& real) {
      EXPECT_EQ(real.facts, expected.facts);
      EXPECT_EQ(real.history, expected.history);
      EXPECT_EQ(real.versions, expected.facts + expected.history);
      EXPECT_EQ(real.vectors, expected.facts);
      EXPECT_EQ(real.keywords, expected.facts);
      EXPECT_EQ(real.turns, expected.turns);
      EXPECT_EQ(real.record_entries, expected.records);
      EXPECT_EQ(real.dependants, expected.dependants);
    };
    check(receipt);
    if (counted_) {
      check(*counted_);
    }
    EXPECT_EQ(receipt.records_disk, expected.records);
    EXPECT_LE(receipt.records_host, expected.records);
    EXPECT_EQ(receipt.dependants_reencoded, wait ? expected.dependants : 0U);
    EXPECT_EQ(receipt.answers_running + receipt.chats_open + receipt.records_in_use, 0U);
    EXPECT_TRUE(receipt.verified) << receipt.note;
  }

  /// All that the bytes of the files could tell of these words.
  void forbid(ByteSearch& search, const std::vector<std::string>& words) const {
    RecordMeta meta;
    meta.shape = fake_kv_shape();
    for (const std::string& word : words) {
      const std::string tail = word.substr(kWordBytes - kTailBytes);
      search.add(tail, word + " text");
      const std::vector<TokenId> tokens(tail.begin(), tail.end());
      search.add(bytes_of(tokens.data(), tokens.size() * sizeof(TokenId)), word + " tokens");
      auto builder = RecordBuilder::create(meta, tokens);
      ASSERT_TRUE(builder.ok()) << builder.status().to_string();
      fill_fake_kv(tokens, *builder);
      const std::size_t bytes = tokens.size() * meta.shape.k_elements() * sizeof(std::uint16_t);
      search.add(bytes_of(builder->layer_k(0), bytes), word + " keys");
      search.add(bytes_of(builder->layer_v(1), bytes), word + " values");
    }
    for (std::size_t i = 0; i + 2 < words.size(); i += 3) {  // whole fact versions
      const std::string text = words[i] + " " + words[i + 1];
      FakeEmbedder embedder;
      const auto vectors = std::move(embedder.embed(std::span(&text, 1)).front()).value();
      search.add(bytes_of(vectors.values.data(), 32), text + " vector");
      HashMessage message;
      message.add_text(text).add_u32(0);
      message.add_u64(0);
      const Hash128 hash = sha256_128(message.bytes());
      search.add(bytes_of(hash.bytes.data(), hash.bytes.size()), text + " hash");
    }
  }

  void look_for_traces() {
    EXPECT_EQ(forbidden_.find_in(rig_.options.directory), std::vector<std::string>());
    const auto stats = rig_.service->stats();
    ASSERT_TRUE(stats.ok()) << stats.status().to_string();
    EXPECT_EQ(stats->records, model_.records() + prefixes_.size());
    EXPECT_EQ(stats->facts, model_.facts.size());
    const std::size_t shown = std::min<std::size_t>(forbidden_words_.size(), 3);
    for (std::size_t i = 0; i < shown; ++i) {
      ask(forbidden_words_[forbidden_words_.size() - 1 - i]);
    }
  }

  /// A search and an answer that look for `word`: neither shows anything that was erased.
  void ask(const std::string& word) {
    for (const char* name : {"ana", "bob"}) {
      const auto found = rig_.service->search(user(name), word, 20, "");
      ASSERT_TRUE(found.ok()) << found.status().to_string();
      for (const SearchHit& hit : found->hits) {
        expect_unforbidden(hit.fact.text + hit.fact.metadata);
      }
      AskRequest request;
      request.scope = user(name);
      request.question = "what is it?";
      const auto reply = rig_.service->ask(request);
      ASSERT_TRUE(reply.ok()) << reply.status().to_string();
      prefixes_.insert(header_of(rig_.engine->calls().back()));
      const std::vector<FakeCall> calls = rig_.engine->calls();
      expect_unforbidden(prompt_text(calls.back()));
      EXPECT_EQ(reply->answer, rig_.expected_answer());
      for (const UsedFact& used : reply->facts) {
        const auto at = std::find_if(ids_.begin(), ids_.end(),
                                     [&](const auto& entry) { return entry.second == used.id; });
        ASSERT_NE(at, ids_.end());
        const DeleteModel::Fact& fact = model_.facts.at(at->first);
        const bool has_record = fact.record && fact.record->version == fact.live();
        EXPECT_EQ(used.injected, has_record);
      }
      note_encoding();
    }
  }

  void expect_unforbidden(const std::string& text) const {
    for (std::size_t at = text.find("zq"); at != std::string::npos; at = text.find("zq", at + 1)) {
      const std::string word = text.substr(at, kWordBytes);
      EXPECT_EQ(std::find(forbidden_words_.begin(), forbidden_words_.end(), word),
                forbidden_words_.end())
          << word << " was erased";
    }
  }

  ServiceRig rig_;
  std::mt19937 random_;
  DeleteModel model_;
  std::map<int, std::string> ids_;  // of the model's names
  std::map<std::string, std::pair<int, std::size_t>> owner_of_word_;
  std::map<std::string, std::string> turn_of_word_;
  ByteSearch forbidden_;
  std::vector<std::string> forbidden_words_;
  std::optional<DeleteReceipt> counted_;
  int facts_made_ = 0;
  int turns_made_ = 0;
  std::set<std::string> prefixes_;  // texts whose KV is kept for everyone
};

class DeleteHistories : public ::testing::TestWithParam<const char*> {};

unsigned histories() {
  const char* const set = std::getenv("INFERSCALE_DELETE_HISTORIES");
  return set != nullptr ? static_cast<unsigned>(std::strtoul(set, nullptr, 10)) : 20;
}

TEST_P(DeleteHistories, LeaveNoTraceAndGiveTrueReceipts) {
  for (unsigned seed = 1; seed <= histories(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History history(GetParam(), seed);
    for (int step = 0; step < 25; ++step) {
      history.step();
      ASSERT_FALSE(HasFailure()) << "step " << step;
    }
  }
}

TEST_P(DeleteHistories, TheSearchFindsWhatIsThere) {
  History history(GetParam(), 1);
  history.expect_findable();
}

INSTANTIATE_TEST_SUITE_P(Contexts, DeleteHistories,
                         ::testing::Values("header", "primer:4", "window:3", "names:4", "turns:3",
                                           "near:2", "log:3", "chain:3", "alone"),
                         [](const auto& context) {
                           std::string name = context.param;
                           std::erase(name, ':');
                           return name;
                         });

}  // namespace
}  // namespace inferscale
