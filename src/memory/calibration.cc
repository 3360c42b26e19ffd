#include "memory/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/log.h"
#include "engine/client_salt.h"
#include "memory/header_record.h"
#include "memory/primer.h"

namespace inferscale {
namespace {

constexpr std::array<std::uint32_t, 4> kSteps = {1, 2, 4, 8};
constexpr std::size_t kRounds = 3;
constexpr double kMaxRatio = 1.10;
constexpr double kMaxSpread =
    1.5;  // slowest over fastest of equal runs on a machine that can be measured on
constexpr std::size_t kQuestionTokens = 30;

std::string setting_name(ServiceCore& core, const EngineParts& parts) {
  return fmt::format("top_j/{}/threads={}", parts.fingerprint().to_hex(), core.options().threads);
}

// Median milliseconds from the start of a run to its first token, for a tail of `facts` made-up
// lines and a question.
struct Probe {
  std::vector<TokenId> facts_and_question;
  std::vector<double> ms;
};

Result<Probe> make_probe(const EngineParts& parts, std::uint32_t facts) {
  Probe probe;
  for (const std::string& line : primer_lines(facts)) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                                parts.engine->tokenizer().encode(line, false));
    probe.facts_and_question.insert(probe.facts_and_question.end(), tokens.begin(), tokens.end());
  }
  std::string question = "What do you remember";
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> tail, parts.prompt->tail(question));
  while (tail.size() < kQuestionTokens) {
    question += " then";
    INFERSCALE_ASSIGN_OR_RETURN(tail, parts.prompt->tail(question));
  }
  probe.facts_and_question.insert(probe.facts_and_question.end(), tail.begin(), tail.end());
  return probe;
}

Status measure(ServiceCore& core, EngineParts& parts, Probe& probe, bool count,
               const WorkControl& control) {
  PrefixSegment header = lease_header(core, parts);
  RunRequest run;
  INFERSCALE_ASSIGN_OR_RETURN(run.run_for, core.run_for(Scope()));
  // What is measured is prefilling: none of it may be at hand from the round before.
  run.run_for.client_salt = fresh_client_salt("calibrate");
  Branch branch;
  branch.tokens = probe.facts_and_question;
  if (header.cold) {
    branch.captures.push_back(
        {0, static_cast<std::uint32_t>(header.segment.tokens.size()), header.meta});
  }
  run.plan.push_back(std::move(header.segment));
  run.branches.push_back(std::move(branch));
  run.sampling.max_tokens = 1;
  run.cancelled = control.cancelled;
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult result, parts.engine->run(std::move(run)));
  if (header.cold) {
    keep_prefix(core, parts, header, result.branches.front().records.at(0));
  }
  if (count) {
    probe.ms.push_back(result.timings.first_token_ms);
  }
  return {};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// TTFT with `facts` more facts as text over TTFT without, interleaved, and how far equal runs lay
// apart.
struct Ratio {
  double value = 0;
  double spread = 0;
};

Result<Ratio> ratio_with(ServiceCore& core, EngineParts& parts, std::uint32_t facts,
                         const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(Probe base, make_probe(parts, 0));
  INFERSCALE_ASSIGN_OR_RETURN(Probe more, make_probe(parts, facts));
  for (std::size_t round = 0; round <= kRounds; ++round) {
    INFERSCALE_RETURN_IF_ERROR(measure(core, parts, base, round > 0, control));
    INFERSCALE_RETURN_IF_ERROR(measure(core, parts, more, round > 0, control));
  }
  const auto [fastest, slowest] = std::minmax_element(base.ms.begin(), base.ms.end());
  return Ratio{median(more.ms) / std::max(median(base.ms), 1e-3),
               *slowest / std::max(*fastest, 1e-3)};
}

}  // namespace

Result<std::uint32_t> calibrate_top_j(ServiceCore& core, const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core.engine());
  std::uint32_t best = 0;
  Ratio first;
  double spread = 0;
  for (std::size_t step = 0; step < kSteps.size(); ++step) {
    if (control.progress) {
      control.progress("calibrate", step, kSteps.size());
    }
    INFERSCALE_ASSIGN_OR_RETURN(const Ratio ratio, ratio_with(core, *parts, kSteps[step], control));
    first = step == 0 ? ratio : first;
    spread = std::max(spread, ratio.spread);
    if (ratio.value > kMaxRatio) {
      break;
    }
    best = kSteps[step];
  }
  if (spread > kMaxSpread) {
    log_message(LogLevel::kInfo,
                fmt::format("top_j 0 for now: the machine is too busy to measure it (equal runs "
                            "differ by {:.1f} x); inferscale calibrate measures it again",
                            spread));
    core.defer_calibration();
    return 0U;
  }
  const std::string value = fmt::format("{} (calibrated {}, one fact as text costs {:.2f} x TTFT)",
                                        best, format_rfc3339(now_us()).substr(0, 10), first.value);
  INFERSCALE_RETURN_IF_ERROR(core.catalog().put_setting(setting_name(core, *parts), value));
  return best;
}

Result<std::uint32_t> calibrated_top_j(ServiceCore& core, const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core.engine());
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> stored,
                              core.catalog().get_setting(setting_name(core, *parts)));
  std::uint32_t value = 0;
  if (stored &&
      std::from_chars(stored->data(), stored->data() + stored->size(), value).ec == std::errc()) {
    return value;
  }
  if (core.calibration_deferred()) {
    return 0U;
  }
  return calibrate_top_j(core, control);
}

Result<std::optional<std::string>> describe_top_j(ServiceCore& core, const EngineParts& parts) {
  return core.catalog().get_setting(setting_name(core, parts));
}

}  // namespace inferscale
