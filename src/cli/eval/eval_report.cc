#include "cli/eval/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/bench/machine.h"
#include "cli/bench/statistics.h"
#include "cli/eval/estimate.h"
#include "cli/eval/row_profile.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kIntervalSeed = 20260730;
constexpr std::array<const char*, 10> kMetrics = {
    "kl_first",         "kl_gold",  "kl_reference", "top1_gold", "top1_reference",
    "first_divergence", "nll_gold", "margin",       "rank1",     "f1"};
/// Those that are compared with the text arm, question by question.
constexpr std::array<const char*, 3> kPaired = {"nll_gold", "margin", "f1"};

using Results = std::vector<const QuestionResult*>;

Json to_json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"low", estimate.low}, {"high", estimate.high}};
}

std::vector<std::vector<double>> by_case(const std::map<std::string, std::vector<double>>& values) {
  std::vector<std::vector<double>> cases;
  for (const auto& [case_id, list] : values) {
    cases.push_back(list);
  }
  return cases;
}

class Summary {
 public:
  explicit Summary(const std::vector<QuestionResult>& results) {
    for (const QuestionResult& result : results) {
      by_arm_[result.arm].push_back(&result);
      found_[{result.arm, result.case_id, result.question_id}] = &result;
    }
  }

  [[nodiscard]] Json arm(const EvalArm& arm, std::uint32_t k) const {
    const std::string name = arm.name(k);
    const auto found = by_arm_.find(name);
    if (found == by_arm_.end()) {
      return Json();
    }
    const Results& results = found->second;
    Json json = {{"name", name},
                 {"kind", arm_kind_name(arm.kind)},
                 {"context", arm.context},
                 {"cure", arm.cure_spelling()},
                 {"top_j", arm.top_j},
                 {"k", k},
                 {"questions", results.size()},
                 {"metrics", metrics(results)}};
    if (arm.kind != ArmKind::kText) {
      add_paired(results, plain_text_name(k), json["metrics"]);
    }
    json["by_category"] = categories(results, plain_text_name(k));
    add_verdicts(results, json);
    json["tokens"] = {{"prompt", mean_of(results, "prompt_tokens")},
                      {"injected", mean_of(results, "injected")},
                      {"prefilled", mean_of(results, "prefilled")}};
    json["ttft_ms"] = median(values_of(results, "ttft_ms"));
    return json;
  }

 private:
  static std::string plain_text_name(std::uint32_t k) { return EvalArm().name(k); }

  static std::vector<double> values_of(const Results& results, const std::string& metric) {
    std::vector<double> values;
    for (const QuestionResult* result : results) {
      const auto value = result->values.find(metric);
      if (value != result->values.end()) {
        values.push_back(value->second);
      }
    }
    return values;
  }

  static double mean_of(const Results& results, const std::string& metric) {
    return estimate_mean({values_of(results, metric)}, kIntervalSeed).mean;
  }

  static Json metrics(const Results& results) {
    Json json = Json::object();
    for (const char* const metric : kMetrics) {
      std::map<std::string, std::vector<double>> values;
      for (const QuestionResult* result : results) {
        const auto value = result->values.find(metric);
        if (value != result->values.end()) {
          values[result->case_id].push_back(value->second);
        }
      }
      if (!values.empty()) {
        json[metric] = to_json(estimate_mean(by_case(values), kIntervalSeed));
      }
    }
    return json;
  }

  /// arm − text, of the questions that both answered.
  [[nodiscard]] std::map<std::string, std::vector<double>> differences(const Results& results,
                                                                       const std::string& text_name,
                                                                       const char* metric) const {
    std::map<std::string, std::vector<double>> values;
    for (const QuestionResult* result : results) {
      const auto text = found_.find({text_name, result->case_id, result->question_id});
      if (text != found_.end() && text->second->values.contains(metric) &&
          result->values.contains(metric)) {
        values[result->case_id].push_back(result->values.at(metric) -
                                          text->second->values.at(metric));
      }
    }
    return values;
  }

  void add_paired(const Results& results, const std::string& text_name, Json& json) const {
    for (const char* const metric : kPaired) {
      const auto values = differences(results, text_name, metric);
      std::vector<double> all;
      for (const auto& [case_id, list] : values) {
        all.insert(all.end(), list.begin(), list.end());
      }
      if (all.empty()) {
        continue;
      }
      Json paired = to_json(estimate_mean(by_case(values), kIntervalSeed));
      paired["p"] = sign_flip_p(all, kIntervalSeed);
      const std::string_view name = metric;
      json[fmt::format("{}_minus_text", name == "nll_gold" ? "nll" : name)] = std::move(paired);
    }
  }

  [[nodiscard]] Json categories(const Results& results, const std::string& text_name) const {
    std::map<std::string, Results> split;
    for (const QuestionResult* result : results) {
      split[result->category].push_back(result);
    }
    Json json = Json::object();
    for (const auto& [category, part] : split) {
      Json one = {{"questions", part.size()}};
      for (const char* const metric : kMetrics) {
        const std::vector<double> values = values_of(part, metric);
        if (!values.empty()) {
          one[metric] = mean_of(part, metric);
        }
      }
      const auto nll = differences(part, text_name, "nll_gold");
      if (!nll.empty()) {
        one["nll_minus_text"] = estimate_mean(by_case(nll), kIntervalSeed).mean;
      }
      json[category] = std::move(one);
    }
    return json;
  }

  static void add_verdicts(const Results& results, Json& json) {
    std::size_t judged = 0;
    std::size_t right = 0;
    std::size_t unparsed = 0;
    for (const QuestionResult* result : results) {
      judged += result->verdict.empty() ? 0 : 1;
      right += result->verdict == "true" ? 1 : 0;
      unparsed += result->verdict == "unparsed" ? 1 : 0;
    }
    if (judged > 0) {  // what the judge did not say counts as wrong
      json["judge"] = {{"accuracy", static_cast<double>(right) / static_cast<double>(judged)},
                       {"unparsed", unparsed}};
    }
  }

  std::map<std::string, Results> by_arm_;
  std::map<std::array<std::string, 3>, const QuestionResult*> found_;
};

/// Those of the set's cases: a log may hold others besides.
template <typename Entry>
std::vector<Entry> of_set(const std::vector<Entry>& entries, const EvalSet& set) {
  std::vector<Entry> chosen;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(chosen), [&](const Entry& entry) {
    return std::any_of(set.cases.begin(), set.cases.end(),
                       [&](const EvalCase& data) { return data.id == entry.case_id; });
  });
  return chosen;
}

std::vector<EvalArm> reported_arms(const EvalOptions& options) {
  std::vector<EvalArm> arms;
  for (const ArmKind kind : {ArmKind::kNone, ArmKind::kText, ArmKind::kFloor, ArmKind::kFacts}) {
    EvalArm arm;
    arm.kind = kind;
    arms.push_back(arm);
  }
  arms.insert(arms.end(), options.arms.begin(), options.arms.end());
  return arms;
}

Json encodings(const std::vector<EncodeResult>& results) {
  std::map<std::string, std::pair<EncodeCost, std::size_t>> sums;
  for (const EncodeResult& encoding : results) {
    auto& [sum, cases] = sums[encoding.context];
    sum.facts += encoding.cost.facts;
    sum.own_tokens += encoding.cost.own_tokens;
    sum.prefilled_tokens += encoding.cost.prefilled_tokens;
    sum.ms += encoding.cost.ms;
    sum.reach += encoding.cost.reach;
    ++cases;
  }
  Json json = Json::array();
  for (const auto& [context, entry] : sums) {
    const EncodeCost& sum = entry.first;
    json.push_back({{"context", context},
                    {"facts", sum.facts},
                    {"own_tokens", sum.own_tokens},
                    {"prefilled_tokens", sum.prefilled_tokens},
                    {"ms", sum.ms},
                    {"reach", sum.reach / static_cast<double>(entry.second)}});
  }
  return json;
}

Json recall(const std::vector<RecallResult>& recalls) {
  std::map<std::string, std::vector<double>> values;
  for (const RecallResult& question : recalls) {
    for (const auto& [k, share] : question.by_k) {
      values[k].push_back(share);
    }
  }
  Json json = Json::object();
  for (const auto& [k, list] : values) {
    json[k] = estimate_mean({list}, kIntervalSeed).mean;
  }
  return json;
}

Json rows(const std::vector<RowComparison>& comparisons) {
  std::map<std::string, std::pair<RowDistances, double>> sums;
  const auto add = [](std::vector<std::vector<double>>& sum,
                      const std::vector<std::vector<double>>& one) {
    sum.resize(one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      sum[i].resize(one[i].size(), 0);
      for (std::size_t j = 0; j < one[i].size(); ++j) {
        sum[i][j] += one[i][j];
      }
    }
  };
  for (const RowComparison& comparison : comparisons) {
    auto& [sum, count] = sums[comparison.context];
    add(sum.k, comparison.distances.k);
    add(sum.v, comparison.distances.v);
    count += 1;
  }
  Json json = Json::array();
  for (auto& [context, entry] : sums) {
    for (auto* const part : {&entry.first.k, &entry.first.v}) {
      for (std::vector<double>& layer : *part) {
        for (double& value : layer) {
          value /= entry.second;
        }
      }
    }
    json.push_back({{"context", context}, {"k_rel", entry.first.k}, {"v_rel", entry.first.v}});
  }
  return json;
}

Json questions(const std::vector<QuestionResult>& results) {
  Json json = Json::array();
  for (const QuestionResult& result : results) {
    Json one = {{"case", result.case_id},
                {"question", result.question_id},
                {"category", result.category},
                {"arm", result.arm}};
    one.update(Json(result.values));
    if (!result.verdict.empty()) {
      one["verdict"] = result.verdict;
    }
    json.push_back(std::move(one));
  }
  return json;
}

std::string cell(const Json& metrics, const char* metric, bool upper) {
  if (!metrics.contains(metric)) {
    return "";
  }
  const Json& estimate = metrics[metric];
  const double mean = estimate["mean"];
  return upper ? fmt::format("{:+.3f} (≤ {:+.3f})", mean, estimate["high"].get<double>())
               : fmt::format("{:.3f}", mean);
}

std::string table_of(const Json& arms, std::size_t width) {
  TextTable table({{"arm"},
                   {"questions", Align::kRight},
                   {"KL first", Align::kRight},
                   {"KL answer", Align::kRight},
                   {"top-1", Align::kRight},
                   {"NLL − text (95 %)", Align::kRight},
                   {"rank 1", Align::kRight},
                   {"F1", Align::kRight}});
  for (const Json& arm : arms) {
    const Json& metrics = arm["metrics"];
    table.add_row({arm["name"], std::to_string(arm["questions"].get<std::uint64_t>()),
                   cell(metrics, "kl_first", false), cell(metrics, "kl_reference", false),
                   cell(metrics, "top1_reference", false), cell(metrics, "nll_minus_text", true),
                   cell(metrics, "rank1", false), cell(metrics, "f1", false)});
  }
  return table.render(width);
}

/// A server's own settings say what its cache and its records are of.
std::string type_name(const MemoryOptions& memory, KvCodec codec) {
  return memory.engine.empty() ? std::string(codec_name(codec)) : "of the server";
}

}  // namespace

BenchReport make_eval_report(const EvalOptions& options, const EvalSet& set,
                             const MemoryOptions& memory, const ResultLog& log,
                             const EvalProvenance& provenance) {
  std::size_t n_questions = 0;
  for (const EvalCase& data : set.cases) {
    n_questions += data.questions.size();
  }
  const std::vector<QuestionResult> results = of_set(log.results(), set);
  const Summary summary(results);
  Json arms = Json::array();
  for (const std::uint32_t k : options.k) {
    for (const EvalArm& arm : reported_arms(options)) {
      if (Json one = summary.arm(arm, k); !one.is_null()) {
        arms.push_back(std::move(one));
      }
    }
  }
  Json json = {{"schema", 1},
               {"eval", set.name},
               {"machine", machine_description()},
               {"model", provenance.model},
               {"library", provenance.library},
               {"command", provenance.command},
               {"started", provenance.started},
               {"set",
                {{"name", set.name},
                 {"cases", set.cases.size()},
                 {"questions", n_questions},
                 {"seed", options.seed}}},
               {"settings",
                {{"k", options.k},
                 {"answer_tokens", options.answer_tokens},
                 {"order", fact_order_name(options.order)},
                 {"store_type", type_name(memory, memory.store_codec)},
                 {"cache_type", type_name(memory, memory.cache_dtype)},
                 {"serving_header", options.serving_system_prompt.empty() ? "same" : "other"}}},
               {"arms", arms},
               {"encoding", encodings(of_set(log.encodings(), set))},
               {"recall", recall(of_set(log.recalls(), set))}};
  if (const auto compared = of_set(log.rows(), set); !compared.empty()) {
    json["rows"] = rows(compared);
  }
  json["questions"] = questions(results);
  BenchReport report;
  report.json = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  report.file = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  report.table = table_of(arms, provenance.table_width);
  return report;
}

}  // namespace inferscale::cli
