// A scope goes out and comes back in: nothing is lost, doubled or changed silently.
#include <gmock/gmock.h>

#include <thread>

#include "cli/import/export_format.h"
#include "cli/import/import_formats.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Scope tutor(Scope scope) {
  scope.agent = "tutor";
  return scope;
}

std::string export_text(MemoryService& service, const Scope& scope,
                        const std::function<void()>& at_begin = {}) {
  ExportWriter writer;
  std::string text;
  ExportSink sink;
  sink.begin = [&](const ExportCounts& counts) -> Status {
    text += writer.header(scope, counts, "2026-01-01T00:00:00Z");
    if (at_begin) {
      at_begin();
    }
    return {};
  };
  sink.turn = [&](const TurnView& turn) -> Status {
    text += writer.turn(turn);
    return {};
  };
  sink.fact = [&](const ExportedFact& fact) -> Status {
    text += writer.fact(fact);
    return {};
  };
  const Status status = service.export_scope(scope, sink, {});
  EXPECT_TRUE(status.ok()) << status.to_string();
  return text + writer.end();
}

Result<ImportBatch> parse(std::string_view text, bool salvage = false) {
  ImportOptions options;
  options.salvage = salvage;
  return parse_import(text, options);
}

ExportedItems items_of(std::string_view text) {
  Result<ImportBatch> batch = parse(text);
  EXPECT_TRUE(batch.ok()) << batch.status().to_string();
  EXPECT_EQ(batch->format, ImportFormat::kInferscale);
  EXPECT_THAT(batch->errors, IsEmpty());
  return std::move(batch->exported);
}

RestoreReply restore(MemoryService& service, const Scope& target, const ExportedItems& items,
                     bool dry_run = false) {
  const auto reply = service.restore(target, items.turns, items.facts, dry_run);
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  return reply.ok() ? *reply : RestoreReply();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = text.find('\n', from);
    lines.push_back(text.substr(from, end - from + 1));
    from = end + 1;
  }
  return lines;
}

class Export : public ::testing::Test {
 protected:
  void SetUp() override {
    rig_.open();
    const std::vector<TurnInput> turns = {
        {"t1", "Mara", "user", "I adopted a whippet.\nHer name is \"Pixel\" \xF0\x9F\x90\x95",
         "2025-02-03T09:30:00.000001+01:00"},
        {"t2", "", "assistant", "How lovely!", ""}};
    const std::vector<FactInput> facts = {
        {"Mara adopted a whippet named Pixel",
         R"({"n":1.50, "big":123456789012345678901, "s":"\u00e9"})",
         "2025-02-03T09:30:00+05:45",
         {"t1", "never-stored"}},
        {"Mara lives in Graz", "{}", "", {}}};
    ASSERT_TRUE(rig_.service->add(mara_, turns, facts, false, {}).ok());
    rig_.add(tutor(mara_), {"Mara prefers exercises with answers"}, false);
    rig_.add(user("teo"), {"Teo has a tortoise"}, false);
    const auto list = rig_.service->list(mara_, "", 10, "");
    ASSERT_TRUE(list.ok());
    UpdateRequest update;
    update.scope = mara_;
    update.id = list->facts.at(1).id;
    for (const char* text : {"Mara lives in Linz", "Mara lives in Wels"}) {
      update.text = text;
      update.metadata = std::string("{\n\t\"from\": \"") + text + "\"}";
      ASSERT_TRUE(rig_.service->update(update, false, {}).ok());
    }
    text_ = export_text(*rig_.service, mara_);
  }

  const Scope mara_ = user("mara");
  ServiceRig rig_;
  std::string text_;
};

TEST_F(Export, ComesBackAsTheSameBytes) {
  ServiceRig fresh;
  fresh.open();
  const RestoreReply reply = restore(*fresh.service, mara_, items_of(text_));
  EXPECT_EQ(reply.turns, 2U);
  EXPECT_EQ(reply.facts_added, 3U);
  EXPECT_EQ(reply.versions, 2U);
  EXPECT_EQ(reply.facts_renamed, 0U);
  EXPECT_THAT(reply.turn_errors, IsEmpty());
  EXPECT_THAT(reply.fact_errors, IsEmpty());
  EXPECT_EQ(export_text(*fresh.service, mara_), text_);
  EXPECT_THAT(text_, ::testing::Not(HasSubstr("tortoise")));

  // What came back is a memory like any other: encoded, found, verified.
  ASSERT_TRUE(fresh.service->encode_pending({}).ok());
  const auto hits = fresh.service->search(mara_, "whippet", 5, "");
  ASSERT_TRUE(hits.ok());
  ASSERT_FALSE(hits->hits.empty());
  EXPECT_EQ(hits->hits.front().fact.text, "Mara adopted a whippet named Pixel");
  const auto verified = fresh.service->verify(VerifyLevel::kFull, {});
  ASSERT_TRUE(verified.ok());
  EXPECT_TRUE(verified->ok);
  EXPECT_EQ(verified->counts.encode_again, 0U);
}

TEST_F(Export, RestoringAgainIsANoOp) {
  const RestoreReply reply = restore(*rig_.service, mara_, items_of(text_));
  EXPECT_EQ(reply.turns_existing, 2U);
  EXPECT_EQ(reply.facts_existing, 3U);
  EXPECT_EQ(reply.turns + reply.facts_added + reply.versions, 0U);
  EXPECT_EQ(export_text(*rig_.service, mara_), text_);
}

TEST_F(Export, IntoAnotherScopeGetsIdsOfItsOwnWhereTheyAreTaken) {
  const Scope kim = user("kim");
  const RestoreReply first = restore(*rig_.service, kim, items_of(text_));
  EXPECT_EQ(first.facts_added, 3U);
  EXPECT_EQ(first.facts_renamed, 3U);
  const RestoreReply second = restore(*rig_.service, kim, items_of(text_));
  EXPECT_EQ(second.facts_existing, 3U);
  EXPECT_EQ(second.facts_added, 0U);
  EXPECT_EQ(export_text(*rig_.service, mara_), text_);
  // A target that names an agent takes everything into it.
  const RestoreReply third = restore(*rig_.service, tutor(user("lee")), items_of(text_));
  EXPECT_EQ(third.facts_added, 3U);
  EXPECT_EQ(rig_.service->list(tutor(user("lee")), "", 10, "")->facts.size(), 3U);
}

TEST_F(Export, ConflictsAreReportedItemByItem) {
  UpdateRequest update;
  update.scope = mara_;
  update.id = items_of(text_).facts.at(0).fact.id;
  update.text = "Mara adopted two whippets";
  ASSERT_TRUE(rig_.service->update(update, false, {}).ok());
  ExportedItems items = items_of(text_);
  items.turns.at(0).turn.text = "something else";
  const std::string before = export_text(*rig_.service, mara_);
  const RestoreReply reply = restore(*rig_.service, mara_, items);
  ASSERT_EQ(reply.fact_errors.size(), 1U);
  EXPECT_EQ(reply.fact_errors[0].item, 0U);
  EXPECT_EQ(reply.fact_errors[0].code, StatusCode::kConflict);
  ASSERT_EQ(reply.turn_errors.size(), 1U);
  EXPECT_EQ(reply.turn_errors[0].code, StatusCode::kConflict);
  EXPECT_EQ(reply.facts_existing, 2U);
  EXPECT_EQ(export_text(*rig_.service, mara_), before);
}

TEST_F(Export, TheSameTextUnderAnotherId) {
  ServiceRig other;
  other.open();
  other.add(tutor(mara_), {"Mara prefers exercises with answers"}, false);  // same time, other id
  FactInput wels;
  wels.text = "Mara lives in Wels";
  ASSERT_TRUE(other.service->add(mara_, {}, std::vector<FactInput>{wels}, false, {}).ok());
  const RestoreReply reply = restore(*other.service, mara_, items_of(text_));
  EXPECT_EQ(reply.facts_existing, 1U);
  EXPECT_EQ(reply.facts_added, 1U);
  ASSERT_EQ(reply.fact_errors.size(), 1U);  // its history would be lost
  EXPECT_EQ(reply.fact_errors[0].item, 1U);
  EXPECT_EQ(reply.fact_errors[0].code, StatusCode::kConflict);
}

TEST_F(Export, BadItemsAreRefusedOneByOne) {
  ExportedItems items = items_of(text_);
  items.facts.push_back(items.facts[0]);
  items.facts[0].fact.id = "../x";
  items.facts[1].history[0].valid_to = "2020-01-01T00:00:00Z";
  items.facts[2].fact.ingest_time = "yesterday";
  items.facts[3].fact.text = "two\nlines";
  items.turns[1].turn.event_time = "noon";
  ServiceRig fresh;
  fresh.open();
  const RestoreReply reply = restore(*fresh.service, mara_, items);
  EXPECT_EQ(reply.facts_added, 0U);
  EXPECT_EQ(reply.turns, 1U);
  ASSERT_EQ(reply.fact_errors.size(), 4U);
  for (const ItemError& error : reply.fact_errors) {
    EXPECT_EQ(error.code, StatusCode::kInvalidArgument) << error.message;
  }
}

TEST_F(Export, ADryRunWritesNothing) {
  ServiceRig fresh;
  fresh.open();
  const RestoreReply reply = restore(*fresh.service, mara_, items_of(text_), true);
  EXPECT_EQ(reply.facts_added, 3U);
  EXPECT_EQ(reply.turns, 2U);
  const auto stats = fresh.service->stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->facts + stats->turns + stats->scopes, 0U);
}

TEST_F(Export, GoesOnAfterAnInterruptedRestore) {
  ServiceRig fresh;
  fresh.open();
  ExportedItems some = items_of(text_);
  some.facts.resize(2);
  some.turns.resize(1);
  restore(*fresh.service, mara_, some);
  fresh.open();
  const RestoreReply reply = restore(*fresh.service, mara_, items_of(text_));
  EXPECT_EQ(reply.facts_existing, 2U);
  EXPECT_EQ(reply.facts_added, 1U);
  EXPECT_EQ(export_text(*fresh.service, mara_), text_);
}

TEST_F(Export, SeesOneMomentWhileOthersWrite) {
  const std::string during = export_text(*rig_.service, mara_, [&] {
    std::thread writer([&] { rig_.add(mara_, {"Mara wrote this meanwhile"}, false); });
    writer.join();
  });
  EXPECT_EQ(during, text_);
  EXPECT_THAT(export_text(*rig_.service, mara_), HasSubstr("meanwhile"));
}

TEST_F(Export, AnErrorOfTheSinkEndsIt) {
  ExportSink sink;
  sink.begin = [](const ExportCounts&) { return Status(); };
  sink.turn = [](const TurnView&) { return resource_exhausted("full"); };
  EXPECT_EQ(rig_.service->export_scope(mara_, sink, {}).code(), StatusCode::kResourceExhausted);
}

TEST_F(Export, EveryTruncationIsDetected) {
  for (std::size_t size = text_.find('\n') + 1; size < text_.size(); ++size) {
    const auto batch = parse(std::string_view(text_).substr(0, size));
    ASSERT_EQ(batch.status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST_F(Export, EveryChangedByteIsDetected) {
  for (std::size_t at = text_.find('\n') + 1; at < text_.size(); ++at) {
    std::string changed = text_;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    ASSERT_FALSE(parse(changed).ok()) << at;
  }
}

TEST_F(Export, SalvageTakesWhatIsWholeAndNamesTheLines) {
  std::vector<std::string> lines = lines_of(text_);
  ASSERT_EQ(lines.size(), 9U);  // header, 2 turns, 3 facts, 2 versions, end
  std::string damaged;
  lines[2] = "{\"turn\":{\"id\":17}}\n";
  lines.erase(lines.begin() + 5);  // one of the versions of the second fact
  lines.pop_back();
  for (const std::string& line : lines) {
    damaged += line;
  }
  EXPECT_EQ(parse(damaged).status().code(), StatusCode::kDataLoss);
  const auto batch = parse(damaged, true);
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  EXPECT_EQ(batch->exported.turns.size(), 1U);
  EXPECT_EQ(batch->exported.facts.size(), 2U);
  ASSERT_EQ(batch->errors.size(), 3U);
  EXPECT_THAT(batch->errors[0].message, HasSubstr("line 3"));
  EXPECT_EQ(batch->errors[0].item, 2U);
  EXPECT_THAT(batch->errors[1].message, HasSubstr("line 5: 1 of the 2 versions"));
  EXPECT_EQ(batch->errors[2].code, StatusCode::kDataLoss);
}

TEST_F(Export, SalvageTakesEveryFactWhoseVersionsWereRead) {
  const std::vector<std::string> lines = lines_of(text_);
  ASSERT_EQ(lines.size(), 9U);  // header, 2 turns, fact, fact and 2 versions, fact, end
  const auto without_end = [&] { return std::vector<std::string>(lines.begin(), lines.end() - 1); };
  std::vector<std::string> changed = lines;  // valid, but not what was written
  changed[3].replace(changed[3].find("whippet"), 7, "whappet");
  std::vector<std::string> no_end = without_end();
  std::vector<std::string> garbage_end = no_end;
  garbage_end.push_back("garbage\n");
  std::vector<std::string> damaged_end = no_end;
  damaged_end.push_back("{\"end\":{\"lines\":7,\"sha256_128\":17}}\n");
  std::vector<std::string> cut_end = no_end;
  cut_end.push_back(lines[8].substr(0, 20));
  std::vector<std::string> followed = lines;
  followed.push_back("garbage\n");
  struct Case {
    const char* name;
    std::vector<std::string> lines;
    std::vector<std::uint64_t> items;  // of the errors
  };
  std::vector<Case> cases = {
      {"a byte is changed", changed, {8}},         {"no end", no_end, {7}},
      {"garbage at the end", garbage_end, {8, 8}}, {"damaged end", damaged_end, {8}},
      {"the end is cut off", cut_end, {8}},        {"something follows", followed, {9}}};
  for (const std::uint64_t at : {4U, 7U, 8U}) {  // after each fact
    std::vector<std::string> garbage = lines;
    garbage.insert(garbage.begin() + static_cast<std::ptrdiff_t>(at), "garbage\n");
    cases.push_back({"garbage after a fact", garbage, {at, 9}});
  }
  for (const Case& damage : cases) {
    SCOPED_TRACE(damage.name);
    std::string text;
    for (const std::string& line : damage.lines) {
      text += line;
    }
    EXPECT_EQ(parse(text).status().code(), StatusCode::kDataLoss);
    const auto batch = parse(text, true);
    ASSERT_TRUE(batch.ok()) << batch.status().to_string();
    EXPECT_EQ(batch->exported.turns.size(), 2U);
    EXPECT_THAT(batch->exported.fact_items.size(), 3U);
    std::vector<std::uint64_t> items;
    for (const ItemError& error : batch->errors) {
      items.push_back(error.item);
    }
    EXPECT_EQ(items, damage.items) << batch->errors.at(0).message;
  }
}

TEST_F(Export, SalvageNeverGivesAFactTheVersionsOfAnother) {
  std::vector<std::string> lines = lines_of(text_);
  lines[4] = "garbage\n";  // its versions follow the fact before it, which has none
  std::string text;
  for (const std::string& line : lines) {
    text += line;
  }
  const auto batch = parse(text, true);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->exported.facts.size(), 2U);
  EXPECT_THAT(batch->exported.facts[0].history, IsEmpty());
  EXPECT_THAT(batch->exported.facts[1].history, IsEmpty());

  // A line among the versions that cannot be read may have begun another fact.
  lines = lines_of(text_);
  lines.insert(lines.begin() + 6, "garbage\n");
  text.clear();
  for (const std::string& line : lines) {
    text += line;
  }
  const auto broken = parse(text, true);
  ASSERT_TRUE(broken.ok());
  EXPECT_EQ(broken->exported.facts.size(), 2U);
  EXPECT_THAT(broken->errors.at(1).message, HasSubstr("line 5: 1 of the 2 versions"));
}

TEST_F(Export, AHeaderWithOtherCountsIsDetected) {
  for (const char* count : {"\"turns\":2", "\"facts\":3", "\"versions\":2"}) {
    SCOPED_TRACE(count);
    const std::size_t at = text_.find(count);
    ASSERT_LT(at, text_.find('\n'));
    std::string other = text_;
    other[at + std::string_view(count).size() - 1] = '1';
    std::string missing = text_;
    missing[at + 1] = 'x';
    for (const std::string& changed : {other, missing}) {
      const auto refused = parse(changed);
      EXPECT_EQ(refused.status().code(), StatusCode::kDataLoss);
      EXPECT_THAT(refused.status().message(), HasSubstr("its header"));
      const auto batch = parse(changed, true);
      ASSERT_TRUE(batch.ok());
      EXPECT_EQ(batch->exported.facts.size(), 3U);
      EXPECT_EQ(batch->errors.size(), 1U);
    }
  }
}

TEST_F(Export, OverlongLinesAndOtherVersionsAreRefused) {
  std::string newer = text_;
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_EQ(parse(newer).status().code(), StatusCode::kUnsupported);
  const std::string header = text_.substr(0, text_.find('\n') + 1);
  const auto batch = parse(
      header + "{\"turn\":{\"id\":\"" + std::string(export_format::kMaxLineBytes, 'x') + "\"}}\n",
      true);
  ASSERT_TRUE(batch.ok());
  EXPECT_THAT(batch->exported.turns, IsEmpty());
  EXPECT_THAT(batch->errors.at(0).message, HasSubstr("longer than"));
}

}  // namespace
}  // namespace inferscale
