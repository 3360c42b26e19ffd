// What each encode context puts before a fact, and what its record then depends on.
#include <gtest/gtest.h>

#include <algorithm>

#include "memory/contexts/scope_names.h"
#include "memory/primer.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

const Scope kAna = user("ana");

std::string text_of(const std::vector<TokenId>& tokens) {
  FakeCall call;
  call.branches = {tokens};
  return prompt_text(call);
}

/// A run that encoded something, as text.
struct Encoding {
  std::string before;  ///< behind the header
  std::vector<std::string> branches;
  std::size_t segments = 0;
  std::vector<bool> injected;
  std::uint32_t prefilled = 0;
};

class EncodeContexts : public ::testing::Test {
 protected:
  void open(const std::string& context) {
    rig_.options.encode_context = context;
    rig_.open();
  }

  AddReply add(const std::vector<FactInput>& facts, const std::vector<TurnInput>& turns = {},
               bool wait = true) {
    auto reply = rig_.service->add(kAna, turns, facts, wait, {});
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : AddReply();
  }

  std::vector<Encoding> encodings() {
    std::vector<Encoding> list;
    for (const FakeCall& call : rig_.engine->calls()) {
      if (call.captures == 0 || call.max_tokens > 0) {
        continue;
      }
      Encoding encoding;
      for (const std::vector<TokenId>& segment : call.segments) {
        encoding.before += text_of(segment);
      }
      const std::size_t preamble = encoding.before.find("remember:\n");
      if (preamble != std::string::npos) {
        encoding.before = encoding.before.substr(preamble + 10);
      }
      for (const std::vector<TokenId>& branch : call.branches) {
        encoding.branches.push_back(text_of(branch));
      }
      encoding.segments = call.segments.size();
      encoding.injected = call.injected;
      encoding.prefilled = call.tokens_prefilled;
      list.push_back(std::move(encoding));
    }
    return list;
  }

  std::size_t injected(const std::string& question) {
    return injected_facts(rig_.ask(kAna, question, 50));
  }

  /// How many facts a delete of this one takes the record from.
  std::uint64_t dependants(const std::string& id) {
    DeleteRequest request = delete_ids(kAna, {id});
    request.dry_run = true;
    return rig_.remove(request).dependants;
  }

  ServiceRig rig_;
};

std::string primer(std::size_t n) {
  std::string text;
  for (const std::string& line : primer_lines(n)) {
    text += line;
  }
  return text;
}

const std::vector<TurnInput> kTurns = {{"t1", "Ana", "user", "Hello there", ""},
                                       {"t2", "Bob", "assistant", "Hello to you", ""},
                                       {"t3", "Ana", "user", "I have\na dog", ""},
                                       {"t4", "", "user", "And a cat", ""}};

TEST_F(EncodeContexts, PrimerIsPrefilledOnceAndInjectedThen) {
  open("primer:4");
  add({{"Ana has a dog", "{}", "", {}}});
  add({{"Ana has a cat", "{}", "", {}}});
  const std::vector<Encoding> runs = encodings();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].before, primer(4));
  EXPECT_EQ(runs[1].before, primer(4));
  EXPECT_EQ(runs[1].injected, std::vector<bool>{true});
  EXPECT_EQ(runs[1].prefilled, std::string("Ana has a cat\n").size()) << "its own tokens only";
  EXPECT_EQ(injected("Ana"), 2U);
}

TEST_F(EncodeContexts, ThePrimersKvServesEveryScopeAndOutlivesAProcess) {
  open("primer:4");
  add({{"Ana has a dog", "{}", "", {}}});
  rig_.open();
  rig_.add(user("bob"), {"Bob has a cat"});
  EXPECT_EQ(encodings().at(0).injected, std::vector<bool>{true});
}

TEST_F(EncodeContexts, NamesAreThoseOfWhoSpeaksMost) {
  open("names:3");
  const std::vector<TurnInput> turns = {{"t1", "Zoe", "user", "once", ""},
                                        {"t2", "Ana", "user", "Robin is here", ""},
                                        {"t3", "Robin", "assistant", "one", ""},
                                        {"t4", "Robin", "assistant", "two", ""},
                                        {"t5", "Ana", "user", "three", ""}};
  const std::string id = add({{"Ana has a dog", "{}", "", {"t2"}}}, turns).ids.front();
  const std::vector<std::string> names = {"Ana", "Robin"};
  std::string expected;
  for (const std::string& line : primer_lines(3, names)) {
    expected += line;
  }
  EXPECT_EQ(encodings().at(0).before, expected);
  EXPECT_NE(expected.find("Ana made two blue bowls and gave one of them to Robin"),
            std::string::npos);
  add({{"Ana has a cat", "{}", "", {}}});
  EXPECT_EQ(encodings().at(1).injected, std::vector<bool>{true});
  EXPECT_EQ(dependants(id), 0U);
}

TEST_F(EncodeContexts, OneNameReplacesOneAndNoneGivesThePrimer) {
  open("names:3");
  add({{"the dog is old", "{}", "", {}}});
  EXPECT_EQ(encodings().at(0).before, primer(3));
  add({{"Zoe's dog is old", "{}", "", {}}});
  const std::string before = encodings().at(1).before;
  EXPECT_EQ(before.find("Alex"), std::string::npos);
  EXPECT_NE(before.find("Zoe made two blue bowls and gave one of them to Robin"),
            std::string::npos);
}

TEST_F(EncodeContexts, NamesThatChangedAndNamesOfAnErasedScopeAreGone) {
  open("names:3");
  add({{"Zoe's dog is old", "{}", "", {}}});
  const std::uint64_t before = rig_.service->stats()->records;
  const std::string second =
      add({{"It is ill", "{}", "", {}}}, {{"t1", "Uma", "user", "hello", ""}}).ids.front();
  EXPECT_NE(encodings().at(1).before.find("Uma"), std::string::npos);
  EXPECT_EQ(rig_.service->stats()->records, before + 1) << "the fact's; the names' was replaced";
  DeleteRequest all;
  all.scope = kAna;
  all.all_in_scope = true;
  const DeleteReceipt receipt = rig_.remove(all);
  EXPECT_EQ(receipt.record_entries, 3U) << "two facts and the names";
  EXPECT_TRUE(receipt.verified);
}

TEST_F(EncodeContexts, NamesGoWithTheLastFactOfTheirScope) {
  open("names:3");
  const AddReply added = add({{"Zoe's dog is old", "{}", "", {}}, {"It is ill", "{}", "", {}}});
  EXPECT_EQ(rig_.remove(delete_ids(kAna, {added.ids[0]})).record_entries, 1U);
  EXPECT_EQ(rig_.remove(delete_ids(kAna, {added.ids[1]})).record_entries, 2U);
}

TEST(LeadingName, IsACapitalisedWordThatIsNoArticle) {
  EXPECT_EQ(leading_name("Ana has a dog"), "Ana");
  EXPECT_EQ(leading_name("Ana's dog"), "Ana");
  EXPECT_EQ(leading_name("\xc3\x89mile sings"), "") << "only ASCII capitals begin a name";
  for (const char* text :
       {"", "ana has", "The dog", "He is", "X5 is a car", "A", "B-side", "I am"}) {
    EXPECT_EQ(leading_name(text), "") << text;
  }
}

TEST_F(EncodeContexts, TurnsBeforeTheFirstSourceTurn) {
  open("turns:2");
  add({{"Ana has a cat", "{}", "", {"t4", "t1"}}}, kTurns);
  EXPECT_EQ(encodings().at(0).before, "Bob: Hello to you\nAna: I have a dog\n");
  add({{"Ana greets", "{}", "", {"t1"}}});
  EXPECT_EQ(encodings().at(1).before, "") << "nothing was said before";
  add({{"Ana is tall", "{}", "", {"gone"}}});
  EXPECT_EQ(encodings().at(2).before, primer(8));
}

TEST_F(EncodeContexts, AnErasedTurnTakesTheRecordsThatSawIt) {
  open("turns:2");
  const std::string cites =
      add({{"Bob greets", "{}", "", {"t2"}}, {"Ana has a cat", "{}", "", {"t4"}}}, kTurns).ids[0];
  ASSERT_EQ(injected("Ana"), 2U);
  const DeleteReceipt receipt = rig_.remove(delete_ids(kAna, {cites}), false);
  EXPECT_EQ(receipt.turns, 1U);
  EXPECT_EQ(receipt.dependants, 1U);
  EXPECT_EQ(injected("Ana"), 0U);
  ASSERT_TRUE(rig_.service->encode_pending({}).ok());
  EXPECT_EQ(encodings().back().before, "Ana: Hello there\nAna: I have a dog\n");
}

TEST_F(EncodeContexts, TurnsAreBoundedFromTheFarEnd) {
  open("turns:64");
  std::vector<TurnInput> turns = {{"huge", "Ana", "user", std::string(200'000, 'x'), ""}};
  for (int i = 0; i < 60; ++i) {
    turns.push_back({"t" + std::to_string(i), "Ana", "user",
                     std::string(95, static_cast<char>('a' + i % 26)), ""});
  }
  add({{"Ana talks", "{}", "", {"t59"}}}, turns);
  const std::string before = encodings().at(0).before;
  EXPECT_LE(before.size(), 2560U);
  EXPECT_GE(before.size(), 2560U - 101U);
  EXPECT_TRUE(before.ends_with(std::string(95, 'g') + "\n"));
}

TEST_F(EncodeContexts, NearTakesPastFactsOnly) {
  const std::vector<std::string> texts = {"tulips grow in spring gardens", "Bob repairs old clocks",
                                          "tulips need spring water", "tulips love spring sun"};
  ServiceRig rig;
  rig.options.encode_context = "near:2";
  rig.open();
  rig.add(kAna, texts, false);
  ASSERT_TRUE(rig.service->encode_pending({}).ok());
  std::vector<std::string> before;
  for (const FakeCall& call : rig.engine->calls()) {
    FakeCall plan = call;
    plan.branches.clear();
    before.push_back(prompt_text(plan));
  }
  ASSERT_EQ(before.size(), 4U);
  const auto has = [&](std::size_t run, std::size_t text) {
    return before[run].find(texts[text]) != std::string::npos;
  };
  EXPECT_TRUE(has(3, 0) && has(3, 2) && !has(3, 1));
  EXPECT_LT(before[3].find(texts[0]), before[3].find(texts[2])) << "in ingest order";
  EXPECT_FALSE(has(0, 2) || has(0, 3)) << "not those that came later";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_FALSE(has(i, i)) << "a fact is not its own company";
  }
}

TEST_F(EncodeContexts, LogInjectsTheFactsBeforeAndDependsOnAllTheySaw) {
  open("log:2");
  const std::vector<std::string> ids = add({{"fact one", "{}", "", {}},
                                            {"fact two", "{}", "", {}},
                                            {"fact three", "{}", "", {}},
                                            {"fact four", "{}", "", {}}})
                                           .ids;
  const std::vector<Encoding> runs = encodings();
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_EQ(runs[0].before, primer(2));
  EXPECT_EQ(runs[1].before, primer(1) + "fact one\n");
  EXPECT_EQ(runs[2].before, "fact one\nfact two\n");
  EXPECT_EQ(runs[3].before, "fact two\nfact three\n");
  EXPECT_EQ(runs[3].injected, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(runs[3].prefilled, std::string("fact four\n").size());
  EXPECT_EQ(dependants(ids[0]), 3U) << "the last through the others";
  EXPECT_EQ(dependants(ids[3]), 0U);
  EXPECT_EQ(rig_.remove(delete_ids(kAna, {ids[0]})).dependants_reencoded, 3U);
  EXPECT_EQ(injected("fact"), 3U);
}

TEST_F(EncodeContexts, LogIsTextFromTheFirstFactWithoutKv) {
  open("header");
  add({{"fact one", "{}", "", {}}});
  open("log:3");
  const std::vector<std::string> ids =
      add({{"fact two", "{}", "", {}}, {"fact three", "{}", "", {}}}).ids;
  const std::vector<Encoding> runs = encodings();
  ASSERT_GE(runs.size(), 2U);
  EXPECT_EQ(runs[1].before, primer(1) + "fact one\nfact two\n");
  EXPECT_EQ(runs[1].segments, 2U) << "one run of text behind the fixed lines";
  EXPECT_EQ(rig_.queue().pending, 0U) << "nothing is encoded for ever";
}

TEST_F(EncodeContexts, LogWhoseKvIsRejectedIsEncodedBehindText) {
  open("log:2");
  add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}});
  rig_.engine->clear_calls();
  rig_.engine->reject_next_injections(1);
  const std::string last = add({{"fact three", "{}", "", {}}}).ids.front();
  const std::vector<Encoding> runs = encodings();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].before, "fact one\nfact two\n");
  EXPECT_EQ(runs[1].injected, (std::vector<bool>{true, false}));
  EXPECT_EQ(rig_.queue().pending, 0U);
}

TEST_F(EncodeContexts, ChainFactsSeeThoseBeforeThemInTheBatch) {
  open("chain:2");
  add({{"fact zero", "{}", "", {}}});
  const std::vector<std::string> ids =
      add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}, {"fact three", "{}", "", {}}})
          .ids;
  const std::vector<Encoding> runs = encodings();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].before, primer(1) + "fact zero\n");
  EXPECT_EQ(runs[1].branches, std::vector<std::string>{"fact one\nfact two\nfact three\n"});
  EXPECT_EQ(dependants(ids[0]), 2U);
  EXPECT_EQ(dependants(ids[1]), 1U);
  EXPECT_EQ(dependants(ids[2]), 0U);
  const AskReply reply = rig_.ask(kAna, "fact", 50);
  EXPECT_EQ(injected_facts(reply), 4U);
  EXPECT_EQ(reply.answer, rig_.expected_answer()) << "each record holds its own tokens";
}

TEST_F(EncodeContexts, AloneStandsBehindNothing) {
  open("alone");
  add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}});
  const std::vector<Encoding> runs = encodings();
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].segments, 0U);
  EXPECT_EQ(runs[0].branches, (std::vector<std::string>{"fact one\n", "fact two\n"}));
  EXPECT_EQ(injected("fact"), 2U);
}

TEST_F(EncodeContexts, FactsShareAWindowOnlyIfNoOtherFactStandsBetweenThem) {
  open("window:2");
  const std::vector<std::string> ids =
      add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}, {"fact three", "{}", "", {}}})
          .ids;
  rig_.engine->clear_calls();
  rig_.update(kAna, ids[0], "fact eins", false);
  add({{"fact four", "{}", "", {}}});
  const std::vector<Encoding> runs = encodings();
  ASSERT_GE(runs.size(), 2U);
  EXPECT_EQ(runs[0].branches, std::vector<std::string>{"fact eins\n"});
  EXPECT_EQ(runs[0].before, primer(2));
  EXPECT_EQ(runs[1].branches, std::vector<std::string>{"fact four\n"});
  EXPECT_EQ(runs[1].before, "fact two\nfact three\n");
}

TEST_F(EncodeContexts, ARecordOfAnotherContextServesUntilItIsReplaced) {
  open("window:2");
  add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}});
  for (const char* context : {"names:4", "log:2", "chain:2", "alone", "near:2"}) {
    open(context);
    EXPECT_EQ(rig_.queue().pending, 2U) << context;
    EXPECT_EQ(injected("fact"), 2U) << "still served under " << context;
    EXPECT_EQ(rig_.service->encode_pending({})->encoded, 2U) << context;
    EXPECT_EQ(rig_.queue().pending, 0U) << context;
    EXPECT_EQ(injected("fact"), 2U) << context;
  }
}

TEST_F(EncodeContexts, ADirectoryRemembersWhatReencodeChose) {
  open("");
  EXPECT_EQ(rig_.service->stats()->encode_context, "window:8");
  add({{"fact one", "{}", "", {}}, {"fact two", "{}", "", {}}});
  const auto reply = rig_.service->reencode({"names:4", false}, {});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply->encoded, 2U);
  EXPECT_EQ(rig_.service->stats()->encode_context, "names:4");
  EXPECT_EQ(rig_.service->reencode({}, {})->encoded, 0U);
  EXPECT_EQ(rig_.service->reencode({"", true}, {})->encoded, 2U) << "all of them";
  rig_.open();
  EXPECT_EQ(rig_.service->stats()->encode_context, "names:4");
  EXPECT_EQ(rig_.queue().pending, 0U);
  open("window:2");
  EXPECT_EQ(rig_.service->stats()->encode_context, "window:2") << "of this service only";
  open("");
  EXPECT_EQ(rig_.service->stats()->encode_context, "names:4");
  EXPECT_EQ(rig_.service->reencode({"names", false}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(EncodeContexts, AReencodeThatIsStoppedGoesOnLater) {
  open("header");
  std::vector<FactInput> facts;
  for (int i = 0; i < 40; ++i) {
    facts.push_back({"fact number " + std::to_string(i), "{}", "", {}});
  }
  add(facts);
  open("");
  std::atomic<bool> cancelled = false;
  WorkControl control;
  control.cancelled = &cancelled;
  control.progress = [&](std::string_view, std::uint64_t done, std::uint64_t) {
    cancelled = cancelled || done > 0;
  };
  const auto reply = rig_.service->reencode({"chain:4", false}, control);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_GT(reply->encoded, 0U);
  EXPECT_LT(reply->encoded, 40U);
  EXPECT_EQ(injected("fact"), 40U) << "old records and new ones";
  rig_.open();
  EXPECT_EQ(rig_.service->stats()->encode_context, "chain:4");
  EXPECT_EQ(rig_.service->encode_pending({})->encoded, 40U - reply->encoded);
  EXPECT_EQ(injected("fact"), 40U);
}

}  // namespace
}  // namespace inferscale
