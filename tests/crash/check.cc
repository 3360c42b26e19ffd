#include "crash/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <utility>

namespace inferscale::testing {
namespace {

constexpr std::uint64_t kQuestions = 20;

class Check {
 public:
  Check(CrashService& service, Oracle& oracle) : tested_(service), oracle_(oracle) {}

  CheckReport run(const std::filesystem::path& fresh, std::uint64_t seed) {
    check_state();
    if (report_.problems.empty()) {
      check_indexes();
      check_records();
      verify();
      check_questions(fresh, seed);
    }
    return std::move(report_);
  }

 private:
  void problem(const std::string& text) { report_.problems.push_back(text); }
  template <typename T>
  bool good(const Result<T>& result, const char* what) {
    if (!result.ok()) {
      problem(fmt::format("{}: {}", what, result.status().to_string()));
    }
    return result.ok();
  }

  void check_state();
  void check_indexes();
  void check_records();
  void verify();
  void check_attended(const RecordEntry& entry);
  void check_lease(const EngineParts& parts, const Fact& fact, const RecordEntry& entry);
  void check_questions(const std::filesystem::path& fresh, std::uint64_t seed);
  void compare_answers(CrashService& fresh, const std::string& user, const std::string& question,
                       bool all_injected);

  CrashService& tested_;
  Oracle& oracle_;
  CheckReport report_;
};

void Check::check_state() {
  const auto found = tested_.state(oracle_);
  if (!good(found, "reading the state")) {
    return;
  }
  const std::string pending = oracle_.pending() ? to_line(*oracle_.pending()) : "none";
  if (!oracle_.settle(*found)) {
    problem(fmt::format("cut off: {}\nexpected:\n{}found:\n{}", pending, describe(oracle_.state()),
                        describe(*found)));
  }
  report_.facts = found->facts.size();
}

// Keywords and vectors of every fact are there, and of no other.
void Check::check_indexes() {
  std::set<std::string> with_vectors;
  for (const std::string& user : crash_users()) {
    const auto vectors = tested_.core->catalog().vectors(scope_of(user), "bag-of-words");
    if (good(vectors, "vectors")) {
      with_vectors.insert(vectors->fact_ids.begin(), vectors->fact_ids.end());
    }
  }
  std::set<std::string> live;
  for (const auto& [id, fact] : oracle_.state().facts) {
    live.insert(id);
    const auto hits = tested_.core->catalog().keyword_search(scope_of(fact.user),
                                                             marker_of(fact.texts.back()), 10);
    if (good(hits, "keyword search") && (hits->size() != 1 || hits->front().fact_id != id)) {
      problem(fmt::format("the keywords of {} find {} facts", id, hits->size()));
    }
  }
  if (live != with_vectors) {
    problem(fmt::format("{} facts, {} with vectors", live.size(), with_vectors.size()));
  }
}

// What a record attended to is live: else it would have gone with what was deleted.
void Check::check_attended(const RecordEntry& entry) {
  for (const FactRef& attended : entry.attended_facts) {
    const auto fact = oracle_.state().facts.find(attended.id);
    if (fact == oracle_.state().facts.end() || attended.version > fact->second.version) {
      problem(fmt::format("the record of {} attended to {}, which is gone", entry.fact.id,
                          attended.id));
    }
  }
}

void Check::check_lease(const EngineParts& parts, const Fact& fact, const RecordEntry& entry) {
  const auto line = parts.prompt->fact_line(fact.text, fact.event_time, fact.event_offset_minutes);
  if (!good(line, "fact line")) {
    return;
  }
  RecordRequest request;
  request.key = entry.key;
  request.model_fingerprint = parts.fingerprint();
  request.shape = parts.engine->info().model.shape;
  request.scope = scope_hash(fact.scope);
  request.token_ids = *line;
  request.context_id = entry.context_id;
  const Lease lease = std::move(tested_.core->store().acquire({&request, 1}).front());
  if (lease.ready()) {
    ++report_.records;
  } else if (lease.reason() == MissReason::kAbsent || lease.reason() == MissReason::kEvicted) {
    report_.records_missing.insert(fmt::format("{} {}", fact.id, fact.version));
  } else {
    problem(fmt::format("the record of {}: {}", fact.id, miss_reason_name(lease.reason())));
  }
}

// Every record is named by the catalog, belongs to a live fact, and is that of its tokens.
void Check::check_records() {
  const auto parts = tested_.core->engine();
  const auto named = tested_.core->catalog().all_record_keys();
  if (!good(parts, "engine") || !good(named, "record keys")) {
    return;
  }
  std::set<RecordKey> unexplained(named->begin(), named->end());
  for (const RecordKey& key : tested_.core->store().keys()) {
    if (!unexplained.contains(key)) {
      problem("a record that the catalog does not name: " + key.value.to_hex());
    }
  }
  for (const auto& [id, known] : oracle_.state().facts) {
    const auto fact = tested_.core->catalog().get_fact(scope_of(known.user), id);
    std::vector<FactRef> versions;
    for (std::uint32_t version = 1; version <= known.version; ++version) {
      versions.push_back({id, version});
    }
    const auto entries = tested_.core->catalog().records_of(versions, (*parts)->fingerprint());
    if (!good(fact, "fact") || !good(entries, "record entries")) {
      continue;
    }
    for (const std::optional<RecordEntry>& entry : *entries) {
      if (!entry) {
        continue;
      }
      unexplained.erase(entry->key);
      check_attended(*entry);
      if (entry->fact.version == fact->version) {
        check_lease(**parts, *fact, *entry);
      }
    }
  }
  if (unexplained.size() > 1) {  // the header's
    problem(fmt::format("{} records belong to no live fact", unexplained.size() - 1));
  }
}

void Check::verify() {
  const auto verified = tested_.service->verify(VerifyLevel::kFull, {});
  if (!good(verified, "verify")) {
    return;
  }
  for (const VerifyProblem& found : verified->problems) {
    problem(fmt::format("verify: {} {}", found.kind, found.what));
  }
  if (verified->ok != verified->problems.empty()) {
    problem("verify is not clean and names no problem");
  }
}

std::vector<std::string> texts_by_rank(const AskReply& reply) {
  std::vector<std::pair<std::uint32_t, std::string>> ranked;
  for (const UsedFact& fact : reply.facts) {
    ranked.emplace_back(fact.rank, fact.text);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> texts;
  for (auto& entry : ranked) {
    texts.push_back(std::move(entry.second));
  }
  return texts;
}

/// The answer that the tokens of the engine's last run deserve, however they came into the cache.
std::string deserved_answer(const FakeEngine& engine) {
  const FakeCall call = engine.calls().back();
  std::vector<TokenId> tokens;
  for (const auto& segment : call.segments) {
    tokens.insert(tokens.end(), segment.begin(), segment.end());
  }
  tokens.insert(tokens.end(), call.branches.front().begin(), call.branches.front().end());
  return FakeEngine::answer_to(tokens);
}

void Check::compare_answers(CrashService& fresh, const std::string& user,
                            const std::string& question, bool all_injected) {
  AskRequest request;
  request.scope = scope_of(user);
  request.question = question;
  request.k = 5;
  request.max_tokens = 24;
  // libllama's answers are equal only where both read the same prompt the same way: as text.
  request.inject = tested_.engine != nullptr;
  const auto answer = tested_.service->ask(request);
  if (!good(answer, "answer")) {
    return;
  }
  const bool deserved =
      tested_.engine == nullptr || answer->answer == deserved_answer(*tested_.engine);
  const auto expected = fresh.service->ask(request);
  if (!good(expected, "the oracle's answer")) {
    return;
  }
  ++report_.questions;
  if (!deserved || texts_by_rank(*answer) != texts_by_rank(*expected) ||
      (all_injected && answer->answer != expected->answer)) {
    problem(fmt::format("\"{}\" is answered \"{}\", not \"{}\"", question, answer->answer,
                        expected->answer));
  }
  if (all_injected && request.inject && answer->tokens.injected != expected->tokens.injected) {
    problem(fmt::format("{} tokens were injected, not {}", answer->tokens.injected,
                        expected->tokens.injected));
  }
}

void Check::check_questions(const std::filesystem::path& fresh, std::uint64_t seed) {
  CrashServiceOptions options;
  options.directory = fresh;
  options.model = tested_.core->options().model;
  options.disk_budget_bytes = 0;
  const auto service = open_crash_service(options);
  if (!good(service, "the oracle's service")) {
    return;
  }
  for (const std::string& user : crash_users()) {
    // In the order in which they were added, which breaks ties between equally good facts.
    const auto list = tested_.service->list(scope_of(user), "", 1000, "");
    if (!good(list, "list")) {
      return;
    }
    std::vector<FactInput> facts;
    for (const FactView& fact : list->facts) {
      facts.push_back({oracle_.state().facts.at(fact.id).texts.back(), "{}", fact.event_time, {}});
    }
    (void)good((*service)->service->add(scope_of(user), {}, facts, false, {}),
               "the oracle's facts");
  }
  static constexpr const char* kAbout[] = {"tea", "boats", "keys at home", "maps in Rome",
                                           "what is by the sea"};
  std::mt19937_64 random(seed);
  std::vector<std::pair<std::string, std::string>> questions;
  for (std::uint64_t i = 0; i < kQuestions; ++i) {
    const std::string& user = crash_users()[random() % crash_users().size()];
    questions.emplace_back(user, fmt::format("{}, {}?", user, kAbout[random() % 5]));
  }
  for (const auto& entry : questions) {
    compare_answers(**service, entry.first, entry.second, tested_.engine == nullptr);
  }
  if (tested_.engine != nullptr && good(tested_.service->encode_pending({}), "encode") &&
      good((*service)->service->encode_pending({}), "the oracle's encode")) {
    // A fact whose encoding met the fault is tried again some time later, and is text until then.
    const auto stats = tested_.service->stats();
    const bool all_injected = good(stats, "stats") && stats->encode.waiting == 0;
    for (const auto& entry : questions) {
      compare_answers(**service, entry.first, entry.second, all_injected);
    }
  }
}

std::string token_bytes(const std::string& text) {
  std::string bytes;
  for (const char c : text) {
    bytes += {c, '\0', '\0', '\0'};
  }
  return bytes;
}

}  // namespace

CheckReport check_service(CrashService& service, Oracle& oracle, const std::filesystem::path& fresh,
                          std::uint64_t seed) {
  return Check(service, oracle).run(fresh, seed);
}

std::vector<std::string> find_traces(const std::filesystem::path& directory, const Oracle& oracle) {
  std::vector<std::string> traces;
  const std::set<std::string> forbidden = oracle.forbidden_markers();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) {
      continue;
    }
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
    for (const std::string& marker : forbidden) {
      if (bytes.find(marker) != std::string::npos) {
        traces.push_back(fmt::format("{} still holds {}", entry.path().string(), marker));
      }
      if (bytes.find(token_bytes(marker)) != std::string::npos) {
        traces.push_back(fmt::format("{} still holds tokens of {}", entry.path().string(), marker));
      }
    }
  }
  return traces;
}

CheckReport check_copy(CrashServiceOptions options, Oracle& oracle, std::uint64_t seed) {
  const std::filesystem::path directory = options.directory;
  const std::filesystem::path copy = directory.parent_path() / "copy";
  const std::filesystem::path fresh = directory.parent_path() / "fresh";
  std::filesystem::remove_all(copy);
  std::filesystem::remove_all(fresh);
  if (std::filesystem::exists(directory)) {
    std::filesystem::copy(directory, copy, std::filesystem::copy_options::recursive);
  }
  options.directory = copy;
  CheckReport report;
  if (const auto service = open_crash_service(options); service.ok()) {
    report = check_service(**service, oracle, fresh, seed);
  } else {
    report.problems.push_back("open: " + service.status().to_string());
    return report;
  }
  for (std::string& trace : find_traces(copy, oracle)) {
    report.problems.push_back(std::move(trace));
  }
  return report;
}

}  // namespace inferscale::testing
