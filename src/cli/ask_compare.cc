#include <fmt/format.h>

#include "cli/ask_command.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

std::string yes_no(bool value) { return value ? "yes" : "no"; }

void add_arm(TextTable& table, const char* name, const AskReply& arm, double text_ttft) {
  const double ttft = arm.timings.ttft;
  table.add_row({name, arm.answer, std::to_string(arm.tokens.prompt),
                 std::to_string(arm.tokens.prefilled), std::to_string(arm.tokens.injected),
                 fmt::format("{:.0f}", ttft),
                 ttft > 0 ? fmt::format("{:.1f} x", text_ttft / ttft) : std::string()});
}

std::string fallback_text(const AskReply& arm) {
  std::string text;
  for (const FallbackCount& fallback : arm.fallbacks) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", fallback.reason, fallback.count);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string compare_table(const CompareReply& reply, std::size_t width) {
  TextTable table({{"arm"},
                   {"answer", Align::kLeft, true},
                   {"prompt", Align::kRight},
                   {"prefilled", Align::kRight},
                   {"injected", Align::kRight},
                   {"TTFT ms", Align::kRight},
                   {"speed-up", Align::kRight}});
  const double text_ttft = reply.text.timings.ttft;
  add_arm(table, "no memory", reply.none, text_ttft);
  add_arm(table, "text", reply.text, text_ttft);
  add_arm(table, "injected", reply.inject, text_ttft);
  return table.render(width) +
         fmt::format(
             "\nSame token ids in text and injected: {}   Greedy answers equal: {}\n"
             "KL of the first token, text to injected: {:.4f} nats (noise floor {:.4f})\n"
             "Fallbacks: {}\n"
             "Times are medians of {} interleaved rounds; speed-up is against the text arm.\n",
             yes_no(reply.same_token_ids), yes_no(reply.greedy_equal), reply.kl_first_token,
             reply.kl_noise_floor, fallback_text(reply.inject), reply.rounds);
}

}  // namespace inferscale::cli
