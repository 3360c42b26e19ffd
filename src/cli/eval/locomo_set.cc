#include "cli/eval/locomo_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/utf8.h"
#include "cli/eval/draw.h"
#include "cli/import/readers.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxQuestions = 100'000;
constexpr std::array<const char*, 6> kCategories = {
    "", "multi_hop", "temporal", "open_domain", "single_hop", "adversarial"};
constexpr std::size_t kAdversarial = 5;
// What LoCoMo takes for the right answer where there is none.
constexpr const char* kNoAnswer = "No information available";

/// Answers are strings, numbers or lists of both.
std::string answer_text(const Json& answer) {
  if (answer.is_string()) {
    return single_line(answer.get<std::string>());
  }
  if (answer.is_number()) {
    return answer.dump();
  }
  std::string text;
  for (const Json& part : answer.is_array() ? answer : Json::array()) {
    const std::string one = part.is_array() ? std::string() : answer_text(part);
    text += (text.empty() || one.empty() ? "" : "; ") + one;
  }
  return text;
}

class ConversationReader {
 public:
  ConversationReader(const LocomoOptions& options, EvalCase& data)
      : options_(options), data_(data) {}

  Status read_questions(const Json& questions) {
    if (!questions.is_array() || questions.size() > kMaxQuestions) {
      return invalid_argument("\"qa\": expected a list of questions");
    }
    for (std::size_t i = 0; i < questions.size(); ++i) {
      read_question(questions[i], i);
    }
    SeededDraw draw(options_.seed);
    if (options_.questions > 0 && options_.questions < data_.questions.size()) {
      draw.shuffle(data_.questions);
      all_ = data_.questions;
      data_.questions.resize(options_.questions);
    } else {
      all_ = data_.questions;
    }
    for (EvalQuestion& question : data_.questions) {
      add_distractors(question, draw);
    }
    return {};
  }

 private:
  // Questions that are not whole are left out, as those without an answer are.
  void read_question(const Json& record, std::size_t index) {
    if (!record.is_object() || !record.contains("question") || !record["question"].is_string() ||
        !record.contains("category") || !record["category"].is_number_integer()) {
      return;
    }
    const auto category = record["category"].get<std::int64_t>();
    const bool adversarial = category == static_cast<std::int64_t>(kAdversarial);
    if (category < 1 || category > static_cast<std::int64_t>(kAdversarial) ||
        (adversarial && !options_.adversarial)) {
      return;
    }
    EvalQuestion question;
    question.id = fmt::format("q{}", index);
    question.text = single_line(record["question"].get<std::string>());
    question.category = kCategories.at(static_cast<std::size_t>(category));
    question.answer = adversarial ? kNoAnswer : answer_text(record.value("answer", Json()));
    if (adversarial) {
      const std::string wrong = answer_text(record.value("adversarial_answer", Json()));
      question.distractors.assign(wrong.empty() ? 0 : 1, wrong);
    }
    add_evidence(record.value("evidence", Json::array()), question);
    if (!question.text.empty() && !question.answer.empty()) {
      data_.questions.push_back(std::move(question));
    }
  }

  void add_evidence(const Json& evidence, EvalQuestion& question) {
    std::vector<std::string> turns;
    collect_locomo_turn_ids(evidence, turns);
    for (std::size_t i = 0; i < data_.facts.size(); ++i) {
      const auto& sources = data_.facts[i].source_turns;
      if (std::any_of(sources.begin(), sources.end(), [&turns](const std::string& id) {
            return std::find(turns.begin(), turns.end(), id) != turns.end();
          })) {
        question.evidence.push_back(i);
      }
    }
  }

  void add_distractors(EvalQuestion& question, SeededDraw& draw) {
    if (!question.distractors.empty()) {
      return;
    }
    std::set<std::string> others;
    for (const EvalQuestion& other : all_) {
      if (other.category == question.category && other.answer != question.answer) {
        others.insert(other.answer);
      }
    }
    question.distractors.assign(others.begin(), others.end());
    draw.shuffle(question.distractors);
    question.distractors.resize(
        std::min<std::size_t>(question.distractors.size(), options_.distractors));
  }

  const LocomoOptions& options_;
  EvalCase& data_;
  std::vector<EvalQuestion> all_;
};

Result<EvalCase> read_conversation(std::string_view bytes, const std::string& id,
                                   const Json& record, const LocomoOptions& options) {
  ImportOptions import;
  import.format = ImportFormat::kLocomo;
  import.conversation = id;
  INFERSCALE_ASSIGN_OR_RETURN(ImportBatch batch, parse_import(bytes, import));
  if (!batch.errors.empty()) {
    return Status(batch.errors[0].code, batch.errors[0].message);
  }
  EvalCase data;
  data.id = id;
  data.turns = std::move(batch.turns);
  data.facts = std::move(batch.facts);
  ConversationReader reader(options, data);
  INFERSCALE_RETURN_IF_ERROR(reader.read_questions(record.value("qa", Json())));
  return data;
}

bool wanted(const std::string& id, std::size_t taken, const LocomoOptions& options) {
  if (!options.ids.empty()) {
    return std::find(options.ids.begin(), options.ids.end(), id) != options.ids.end();
  }
  return options.conversations == 0 || taken < options.conversations;
}

}  // namespace

Result<EvalSet> read_locomo_set(std::string_view bytes, const LocomoOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const ImportDocument document, open_document(bytes));
  EvalSet set;
  set.name = "locomo";
  for (std::size_t i = 0; i < document.records.size(); ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(const Json record, parse_json_item(document.records[i]));
    const std::string id =
        record.is_object() && record.contains("sample_id") && record["sample_id"].is_string()
            ? record["sample_id"].get<std::string>()
            : std::string();
    if (id.empty()) {
      return invalid_argument(document.place(i) + ": not a conversation of LoCoMo");
    }
    if (wanted(id, set.cases.size(), options)) {
      auto data = read_conversation(bytes, id, record, options);
      if (!data.ok()) {
        return data.status().with_context("conversation " + id);
      }
      set.cases.push_back(std::move(data).value());
    }
  }
  for (const std::string& id : options.ids) {
    if (std::none_of(set.cases.begin(), set.cases.end(),
                     [&id](const EvalCase& data) { return data.id == id; })) {
      return not_found(fmt::format("no conversation \"{}\" in the file", id));
    }
  }
  if (set.cases.empty()) {
    return invalid_argument("the file holds no conversation");
  }
  return set;
}

}  // namespace inferscale::cli
