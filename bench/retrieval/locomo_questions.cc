#include "retrieval/locomo_questions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>

namespace inferscale::bench {
namespace {

using Json = nlohmann::json;

/// "D8:6; D9:17", "D:11:26" and lists of such: ids are written in several ways.
void collect_evidence(const Json& value, std::set<std::string>& ids) {
  if (value.is_array()) {
    for (const Json& element : value) {
      collect_evidence(element, ids);
    }
  } else if (value.is_string()) {
    static const std::regex kId(R"(D:?0*(\d+):0*(\d+))");
    const auto text = value.get<std::string>();
    for (std::sregex_iterator match(text.begin(), text.end(), kId), end; match != end; ++match) {
      ids.insert(fmt::format("D{}:{}", (*match)[1].str(), (*match)[2].str()));
    }
  }
}

void read_questions(const Json& record, Conversation& conversation) {
  for (const Json& entry : record.at("qa")) {
    Question question;
    question.category = entry.at("category").get<int>();
    if (question.category < 1 || question.category > 4) {
      continue;  // 5: adversarial, its answer is that there is none
    }
    question.text = entry.at("question").get<std::string>();
    collect_evidence(entry.value("evidence", Json::array()), question.evidence);
    if (question.evidence.empty()) {
      ++conversation.without_evidence;
    } else {
      conversation.questions.push_back(std::move(question));
    }
  }
}

}  // namespace

Result<std::vector<Conversation>> read_conversations(std::string_view bytes) {
  std::vector<Conversation> conversations;
  try {
    for (const Json& record : Json::parse(bytes)) {
      Conversation& conversation = conversations.emplace_back();
      conversation.id = record.at("sample_id").get<std::string>();
      ImportOptions options;
      options.format = ImportFormat::kLocomo;
      options.conversation = conversation.id;
      INFERSCALE_ASSIGN_OR_RETURN(ImportBatch batch, parse_import(bytes, options));
      conversation.facts = std::move(batch.facts);
      read_questions(record, conversation);
    }
  } catch (const Json::exception& error) {
    return invalid_argument(fmt::format("not a LoCoMo file: {}", error.what()));
  }
  return conversations;
}

}  // namespace inferscale::bench
