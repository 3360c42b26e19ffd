#include "cli/eval/result_log.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxLogBytes = 4ULL << 30;

std::string key_of(std::string_view kind, const std::string& case_id,
                   const std::string& question_id, const std::string& what) {
  return fmt::format("{}\n{}\n{}\n{}", kind, case_id, question_id, what);
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_json(const QuestionResult& result) {
  Json json = {{"result", result.arm},           {"case", result.case_id},
               {"question", result.question_id}, {"category", result.category},
               {"values", result.values},        {"answer", result.answer}};
  if (!result.verdict.empty()) {
    json["verdict"] = result.verdict;
  }
  return json;
}

Json to_json(const EncodeResult& encoding) {
  const EncodeCost& cost = encoding.cost;
  return {{"encoding", encoding.context},
          {"case", encoding.case_id},
          {"facts", cost.facts},
          {"own_tokens", cost.own_tokens},
          {"prefilled_tokens", cost.prefilled_tokens},
          {"ms", cost.ms},
          {"reach", cost.reach}};
}

Json to_json(const RowComparison& rows) {
  return {{"rows", rows.context},
          {"case", rows.case_id},
          {"question", rows.question_id},
          {"k", rows.distances.k},
          {"v", rows.distances.v}};
}

QuestionResult result_of(const Json& json) {
  return {json.at("case"),
          json.at("question"),
          json.at("category"),
          json.at("result"),
          json.at("values").get<std::map<std::string, double>>(),
          json.at("answer"),
          json.value("verdict", std::string())};
}

EncodeResult encoding_of(const Json& json) {
  return {json.at("case"),
          json.at("encoding"),
          {json.at("facts"), json.at("own_tokens"), json.at("prefilled_tokens"), json.at("ms"),
           json.at("reach")}};
}

RowComparison rows_of(const Json& json) {
  return {json.at("case"),
          json.at("question"),
          json.at("rows"),
          {json.at("k").get<std::vector<std::vector<double>>>(),
           json.at("v").get<std::vector<std::vector<double>>>()}};
}

}  // namespace

Result<std::unique_ptr<ResultLog>> ResultLog::open(const std::filesystem::path& path,
                                                   const std::string& identity) {
  std::unique_ptr<ResultLog> log(new ResultLog());
  log->path_ = path;
  auto lock = FileLock::acquire(path.string() + ".lock");
  if (!lock.ok()) {
    return lock.status().with_context("another evaluation works in this directory");
  }
  log->lock_.emplace(std::move(lock).value());
  auto bytes = read_file(path, kMaxLogBytes);
  if (!bytes.ok() && bytes.status().code() != StatusCode::kNotFound) {
    return bytes.status();
  }
  const std::string_view text =
      bytes.ok() ? std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size())
                 : std::string_view();
  const std::size_t whole = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
  if (whole > 0) {
    INFERSCALE_RETURN_IF_ERROR(
        log->read(text.substr(0, whole), identity).with_context(path.string()));
  }
  if (bytes.ok()) {  // a line that was cut off
    std::error_code error;
    std::filesystem::resize_file(path, whole, error);
    if (error) {
      return unavailable(fmt::format("{}: {}", path.string(), error.message()));
    }
  }
  log->out_.open(path, std::ios::app | std::ios::binary);
  if (whole == 0) {
    INFERSCALE_RETURN_IF_ERROR(log->write(line_of({{"evaluation", identity}})));
  }
  return log;
}

Status ResultLog::read(std::string_view bytes, const std::string& identity) {
  bool first = true;
  for (std::size_t from = 0; from < bytes.size();) {
    const std::size_t end = bytes.find('\n', from);
    const std::string_view line = bytes.substr(from, end - from);
    from = end + 1;
    if (!first) {
      INFERSCALE_RETURN_IF_ERROR(take(line));
      continue;
    }
    first = false;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("evaluation")) {
      return data_loss("not the log of an evaluation; give another work directory");
    }
    if (json["evaluation"] != identity) {
      return conflict(
          "holds results of another model or setting; give another work "
          "directory or remove this one");
    }
  }
  return {};
}

Status ResultLog::take(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  try {
    if (json.contains("digest")) {
      digests_[json.at("case")] = json.at("digest");
      return {};
    }
    // What is there twice counts once.
    if (json.contains("result")) {
      QuestionResult result = result_of(json);
      if (known_.insert(key_of("result", result.case_id, result.question_id, result.arm)).second) {
        results_.push_back(std::move(result));
      }
    } else if (json.contains("encoding")) {
      if (known_.insert(key_of("encoding", json.at("case"), "", json.at("encoding"))).second) {
        encodings_.push_back(encoding_of(json));
      }
    } else if (json.contains("rows")) {
      if (known_.insert(key_of("rows", json.at("case"), json.at("question"), json.at("rows")))
              .second) {
        rows_.push_back(rows_of(json));
      }
    } else if (known_.insert(key_of("recall", json.at("case"), json.at("question"), "")).second) {
      recalls_.push_back({json.at("case"), json.at("question"),
                          json.at("recall").get<std::map<std::string, double>>()});
    }
  } catch (const Json::exception& error) {
    return data_loss(
        fmt::format("a line that is none of an evaluation's ({}); give another work "
                    "directory",
                    error.what()));
  }
  return {};
}

Status ResultLog::write(const std::string& line) {
  out_ << line << std::flush;
  return out_ ? Status() : unavailable(path_.string() + ": cannot be written; is the disk full?");
}

Status ResultLog::open_case(const std::string& case_id, const std::string& digest) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = digests_.emplace(case_id, digest);
  if (is_new) {
    return write(line_of({{"digest", digest}, {"case", case_id}}));
  }
  return known->second == digest
             ? Status()
             : conflict(
                   fmt::format("{}: holds results of other questions or facts of case {}; give "
                               "another work directory or remove this one",
                               path_.string(), case_id));
}

bool ResultLog::knows(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return known_.contains(key);
}

bool ResultLog::has(const std::string& case_id, const std::string& question_id,
                    const std::string& arm) const {
  return knows(key_of("result", case_id, question_id, arm));
}

bool ResultLog::has_rows(const std::string& case_id, const std::string& question_id,
                         const std::string& context) const {
  return knows(key_of("rows", case_id, question_id, context));
}

bool ResultLog::has_encoding(const std::string& case_id, const std::string& context) const {
  return knows(key_of("encoding", case_id, "", context));
}

Status ResultLog::add(QuestionResult result) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_RETURN_IF_ERROR(write(line_of(to_json(result))));
  known_.insert(key_of("result", result.case_id, result.question_id, result.arm));
  results_.push_back(std::move(result));
  return {};
}

Status ResultLog::add(RowComparison rows) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_RETURN_IF_ERROR(write(line_of(to_json(rows))));
  known_.insert(key_of("rows", rows.case_id, rows.question_id, rows.context));
  rows_.push_back(std::move(rows));
  return {};
}

Status ResultLog::add(EncodeResult encoding) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_RETURN_IF_ERROR(write(line_of(to_json(encoding))));
  known_.insert(key_of("encoding", encoding.case_id, "", encoding.context));
  encodings_.push_back(std::move(encoding));
  return {};
}

Status ResultLog::add(RecallResult recall) {
  const std::lock_guard lock(mutex_);
  if (!known_.insert(key_of("recall", recall.case_id, recall.question_id, "")).second) {
    return {};
  }
  INFERSCALE_RETURN_IF_ERROR(write(line_of(
      {{"recall", recall.by_k}, {"case", recall.case_id}, {"question", recall.question_id}})));
  recalls_.push_back(std::move(recall));
  return {};
}

}  // namespace inferscale::cli
