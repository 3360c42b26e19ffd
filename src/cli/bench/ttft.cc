#include "cli/bench/ttft.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/clock.h"
#include "cli/bench/machine.h"
#include "cli/bench/statistics.h"
#include "cli/bench/ttft_rig.h"
#include "cli/interrupt.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Arm> arms_of(const TtftOptions& options) {
  std::vector<Arm> arms = {Arm::kNone, Arm::kText, Arm::kInject};
  if (options.warm) {
    arms.push_back(Arm::kWarm);
  }
  return arms;
}

struct Cell {
  Arm arm = Arm::kNone;
  std::uint32_t k = 0;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};
using Samples = std::map<Cell, std::vector<TtftSample>>;

template <typename Field>
std::vector<double> column(const std::vector<TtftSample>& samples, Field field) {
  std::vector<double> values;
  for (const TtftSample& sample : samples) {
    values.push_back(field(sample));
  }
  return values;
}

std::vector<double> ttfts(const std::vector<TtftSample>& samples) {
  return column(samples, [](const TtftSample& s) { return s.ttft; });
}

Result<Samples> measure_rounds(TtftRig& rig, const TtftOptions& options, const Progress& progress) {
  std::vector<Cell> cells;
  for (const std::uint32_t k : options.k) {
    for (const Arm arm : arms_of(options)) {
      cells.push_back({arm, k});
    }
  }
  std::mt19937_64 random(options.seed);
  Samples samples;
  const std::uint64_t total = cells.size() * (options.repeat + 1);
  std::uint64_t done = 0;
  for (std::uint32_t round = 0; round <= options.repeat; ++round) {
    std::shuffle(cells.begin(), cells.end(), random);
    for (const Cell& cell : cells) {
      if (interrupted()) {
        return unavailable("stopped; nothing was written");
      }
      progress("bench", done++, total);
      INFERSCALE_ASSIGN_OR_RETURN(const TtftSample sample,
                                  rig.measure(cell.arm, cell.k, options.top_j));
      if (round > 0) {  // the first round warms caches up
        samples[cell].push_back(sample);
      }
    }
  }
  return samples;
}

Json parts_json(const std::vector<TtftSample>& inject) {
  const auto part = [&](auto field) { return median(column(inject, field)); };
  return {{"embed", part([](const TtftSample& s) { return s.embed; })},
          {"retrieve", part([](const TtftSample& s) { return s.retrieve; })},
          {"plan", part([](const TtftSample& s) { return s.plan; })},
          {"lease", part([](const TtftSample& s) { return s.lease; })},
          {"compose", part([](const TtftSample& s) { return s.compose; })},
          {"state_write", part([](const TtftSample& s) { return s.state_write; })},
          {"prefill", part([](const TtftSample& s) { return s.prefill; })},
          {"other", part([](const TtftSample& s) {
             return s.ttft - s.plan - s.lease - s.compose - s.state_write - s.prefill;
           })}};
}

void add_arm(Json& row, const std::string& name, const std::vector<double>& times) {
  row[name + "_ms"] = median(times);
  row[name + "_p10_ms"] = percentile(times, 0.10);
  row[name + "_p95_ms"] = percentile(times, 0.95);
}

void add_ratio(Json& row, const std::string& name, const std::vector<double>& above,
               const std::vector<double>& below, std::uint64_t seed) {
  row[name] = median(above) / median(below);
  const auto [low, high] = ratio_interval(above, below, seed);
  row[name + "_ci95"] = {low, high};
}

Json row_json(std::uint32_t k, const Samples& samples, std::uint64_t seed) {
  const std::vector<TtftSample>& inject = samples.at({Arm::kInject, k});
  const std::vector<double> none_ms = ttfts(samples.at({Arm::kNone, k}));
  const std::vector<double> text_ms = ttfts(samples.at({Arm::kText, k}));
  const std::vector<double> inject_ms = ttfts(inject);
  Json row = {{"k", k},
              {"facts_tokens", inject.front().facts_tokens},
              {"prompt_tokens", inject.front().injected + inject.front().prefilled},
              {"injected_tokens", inject.front().injected},
              {"prefilled_tokens", inject.front().prefilled}};
  add_arm(row, "none", none_ms);
  add_arm(row, "text", text_ms);
  add_arm(row, "inject", inject_ms);
  add_ratio(row, "text_over_inject", text_ms, inject_ms, seed);
  add_ratio(row, "inject_over_none", inject_ms, none_ms, seed);
  add_ratio(row, "text_over_none", text_ms, none_ms, seed);
  if (const auto warm = samples.find({Arm::kWarm, k}); warm != samples.end()) {
    const std::vector<double> warm_ms = ttfts(warm->second);
    add_arm(row, "warm", warm_ms);
    row["warm_reused_tokens"] = warm->second.front().reused;
    add_ratio(row, "inject_over_warm", inject_ms, warm_ms, seed);
  }
  row["parts_ms"] = parts_json(inject);
  const Json& parts = row["parts_ms"];
  row["compose_and_write_share"] =
      (parts["compose"].get<double>() + parts["state_write"].get<double>()) / median(inject_ms);
  return row;
}

Json report_head(const TtftRig& rig, const TtftOptions& options, const MemoryOptions& memory,
                 double load) {
  const EngineInfo& info = rig.engine().info();
  const auto [least, most] = rig.fact_token_range();
  return {{"bench", "ttft"},
          {"command", options.command},
          {"machine", machine_description()},
          {"load_average_before", load},
          {"model", info.model.name},
          {"model_file", memory.engine.empty() ? memory.model.filename().string() : "server"},
          {"model_fingerprint", info.model.fingerprint.to_hex()},
          {"library", info.library},
          {"version", INFERSCALE_VERSION},
          {"date", format_rfc3339(now_us())},
          {"threads", memory.threads},
          {"repeat", options.repeat},
          {"top_j", options.top_j},
          {"seed", options.seed},
          {"header_tokens", rig.workload().prompt().header().size()},
          {"question_tokens", rig.question_tokens()},
          {"fact_tokens_least", least},
          {"fact_tokens_most", most},
          {"embedder", memory.embedder.empty() ? "none" : memory.embedder.filename().string()}};
}

std::string ttft_table(const Json& report, std::size_t width) {
  const auto right = [](const char* title) { return TableColumn{title, Align::kRight}; };
  const Json& rows = report["rows"];
  const bool warm = rows.front().contains("warm_ms");
  std::vector<TableColumn> columns = {right("k"),          right("tokens"),    right("none ms"),
                                      right("text ms"),    right("inject ms"), right("text/inject"),
                                      right("inject/none")};
  if (warm) {
    columns.insert(columns.end(), {right("warm ms"), right("inject/warm")});
  }
  TextTable times(columns);
  TextTable parts({right("k"), right("retrieve"), right("plan"), right("lease"), right("compose"),
                   right("write"), right("prefill"), right("other")});
  const auto number = [](const Json& value) { return fmt::format("{:.2f}", value.get<double>()); };
  for (const Json& row : rows) {
    const std::string k = row["k"].dump();
    std::vector<std::string> cells = {k, row["facts_tokens"].dump()};
    for (const char* name : {"none_ms", "text_ms", "inject_ms", "text_over_inject",
                             "inject_over_none", "warm_ms", "inject_over_warm"}) {
      if (row.contains(name)) {
        cells.push_back(number(row[name]));
      }
    }
    times.add_row(std::move(cells));
    const Json& p = row["parts_ms"];
    parts.add_row({k, number(p["retrieve"]), number(p["plan"]), number(p["lease"]),
                   number(p["compose"]), number(p["state_write"]), number(p["prefill"]),
                   number(p["other"])});
  }
  return fmt::format(
      "{}\n{} ({}), header {} tokens, question {}, facts {} to {} each; medians of {} rounds\n\n"
      "{}\nWhere the injected arm's time goes, in ms (retrieve comes before its first token "
      "time):\n{}",
      report["machine"].get<std::string>(), report["model"].get<std::string>(),
      report["model_file"].get<std::string>(), report["header_tokens"].dump(),
      report["question_tokens"].dump(), report["fact_tokens_least"].dump(),
      report["fact_tokens_most"].dump(), report["repeat"].dump(), times.render(width),
      parts.render(width));
}

}  // namespace

Result<BenchReport> run_ttft_bench(const TtftOptions& options, const MemoryOptions& memory,
                                   const WorkControl& control) {
  const double load = load_average();
  const std::uint32_t most = *std::max_element(options.k.begin(), options.k.end());
  INFERSCALE_ASSIGN_OR_RETURN(const ServiceDependencies dependencies, service_dependencies(memory));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<TtftRig> rig,
                              TtftRig::open(memory, dependencies, most, control));
  INFERSCALE_ASSIGN_OR_RETURN(const Samples samples,
                              measure_rounds(*rig, options, control.progress));
  Json report = report_head(*rig, options, memory, load);
  report["load_average_after"] = load_average();
  Json rows = Json::array();
  for (const std::uint32_t k : options.k) {
    rows.push_back(row_json(k, samples, options.seed));
  }
  report["rows"] = std::move(rows);
  return BenchReport{report.dump(), report.dump(2) + "\n", ttft_table(report, options.table_width)};
}

}  // namespace inferscale::cli
