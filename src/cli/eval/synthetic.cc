#include "cli/eval/synthetic.h"

#include <fmt/format.h>

#include <numeric>
#include <set>

#include "base/day.h"
#include "cli/eval/synthetic_draft.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kMaxDistractors = 7;
constexpr TimestampUs kDayUs = 86'400'000'000;
constexpr TimestampUs kFirstDay = 1'641'200'400'000'000;  // 2022-01-03T09:00:00Z

/// Gives a draft an order, dates and turns.
class CaseWriter {
 public:
  CaseWriter(std::string_view kind, SyntheticCaseDraft draft, SeededDraw& draw)
      : kind_(kind), draft_(std::move(draft)), draw_(draw) {}

  EvalCase write(std::string id) {
    case_.id = std::move(id);
    write_facts(arranged());
    write_questions();
    return std::move(case_);
  }

 private:
  struct Place {
    std::size_t fact = 0;
    std::size_t turn = 0;
    TimestampUs time = 0;
  };

  /// The drafts in the order in which they are learned: shuffled, what has an order in that order,
  /// and at the end an eighth that no question needs.
  std::vector<std::size_t> arranged() {
    std::set<std::size_t> needed;
    for (const SyntheticAsk& ask : draft_.asks) {
      needed.insert(ask.evidence.begin(), ask.evidence.end());
    }
    for (const std::vector<std::size_t>& in_order : draft_.ordered) {
      needed.insert(in_order.begin(), in_order.end());
    }
    std::vector<std::size_t> order(draft_.drafts.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    draw_.shuffle(order);
    std::size_t end = order.size();
    const std::size_t free_from = end - end / 8;
    for (std::size_t i = end; i-- > 0 && end > free_from;) {
      if (!needed.contains(order[i])) {
        std::swap(order[i], order[--end]);
      }
    }
    for (const std::vector<std::size_t>& in_order : draft_.ordered) {
      std::size_t next = 0;
      for (std::size_t& draft : order) {
        if (std::find(in_order.begin(), in_order.end(), draft) != in_order.end()) {
          draft = in_order[next++];
        }
      }
    }
    return order;
  }

  void add_turn(std::size_t session, std::size_t number, std::size_t speaker, std::string text,
                const std::string& time) {
    case_.turns.push_back({.id = fmt::format("D{}:{}", session, number),
                           .speaker = std::string(draft_.speakers[speaker]),
                           .text = std::move(text),
                           .event_time = time});
  }

  /// Each fact on a day of its own, with the two or three turns of that day.
  void write_facts(const std::vector<std::size_t>& order) {
    static constexpr std::array<std::string_view, 4> kOpenings = {"By the way, ", "I heard that ",
                                                                  "You know, ", "I think "};
    static constexpr std::array<std::string_view, 4> kReplies = {
        "Good to know.", "Thanks for telling me.", "Oh, really?", "I did not know that."};
    place_.resize(draft_.drafts.size());
    TimestampUs time = kFirstDay;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const SyntheticDraft& draft = draft_.drafts[order[i]];
      time += static_cast<TimestampUs>(1 + draw_.index(9)) * kDayUs;
      const std::string when = format_rfc3339(time);
      const std::size_t speaker = draw_.index(2);
      const std::size_t opening = draw_.index(kOpenings.size());
      const std::size_t reply = draw_.index(kReplies.size());
      std::size_t turn = 1;
      if (!draft.asked_before.empty()) {
        add_turn(i + 1, turn++, 1 - speaker, draft.asked_before, when);
      }
      place_[order[i]] = {i, case_.turns.size(), time};
      add_turn(i + 1, turn++, speaker,
               draft.said.empty() ? std::string(kOpenings[opening]) + draft.text : draft.said,
               when);
      case_.facts.push_back(
          {.text = draft.text, .event_time = when, .source_turns = {case_.turns.back().id}});
      add_turn(i + 1, turn, 1 - speaker, std::string(kReplies[reply]), when);
    }
  }

  std::vector<std::string> distractors(const SyntheticAsk& ask) const {
    std::vector<std::string> found;
    const auto take = [&](const SyntheticDraft& draft) {
      const std::string value(draft.value);
      if (found.size() < kMaxDistractors && !value.empty() && draft.topic == ask.topic &&
          draft.value != ask.answer &&
          std::find(found.begin(), found.end(), value) == found.end()) {
        found.push_back(value);
      }
    };
    for (const std::size_t rival : ask.rivals) {
      take(draft_.drafts[rival]);
    }
    for (const SyntheticDraft& draft : draft_.drafts) {
      take(draft);
    }
    return found;
  }

  void write_questions() {
    for (const SyntheticAsk& ask : draft_.asks) {
      EvalQuestion question;
      question.id = fmt::format("q{}", case_.questions.size() + 1);
      question.category = kind_;
      question.answer = ask.answer;
      question.distractors = distractors(ask);
      const std::string date = format_day(place_[ask.evidence.front()].time);
      question.text = fill_words(ask.question, {{"{D}", date}});
      for (const std::size_t draft : ask.evidence) {
        const Place& place = place_[draft];
        question.evidence.push_back(place.fact);
        if (ask.needs_turns && !draft_.drafts[draft].asked_before.empty()) {
          question.needed_turns.push_back(place.turn - 1);
        }
        if (ask.needs_turns) {
          question.needed_turns.push_back(place.turn);
        }
      }
      case_.questions.push_back(std::move(question));
    }
  }

  const std::string_view kind_;
  const SyntheticCaseDraft draft_;
  SeededDraw& draw_;
  EvalCase case_;
  std::vector<Place> place_;  ///< by draft
};

Status check_bound(std::string_view field, std::uint32_t value, std::uint32_t least,
                   std::uint32_t most) {
  if (value >= least && value <= most) {
    return {};
  }
  return invalid_argument(fmt::format("{}: {} is not within {} and {}", field, value, least, most));
}

}  // namespace

Result<EvalSet> make_synthetic_set(const SyntheticOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(check_bound("cases per kind", options.cases_per_kind, 1, 1000));
  INFERSCALE_RETURN_IF_ERROR(check_bound("questions per case", options.questions_per_case, 1, 8));
  // Six facts or fewer belong to a question, and an eighth of all must belong to none.
  INFERSCALE_RETURN_IF_ERROR(check_bound("facts per case, 8 for each question",
                                         options.facts_per_case,
                                         std::max(16U, 8 * options.questions_per_case), 128));
  EvalSet set;
  set.name = "synthetic";
  for (std::size_t kind = 0; kind < kSyntheticKinds.size(); ++kind) {
    for (std::size_t number = 0; number < options.cases_per_kind; ++number) {
      // A case draws from numbers of its own: it stays what it is when others are added.
      SeededDraw draw(options.seed * 0x9E3779B97F4A7C15ULL + number * kSyntheticKinds.size() +
                      kind);
      CaseWriter writer(kSyntheticKinds[kind],
                        draft_synthetic_case(kSyntheticKinds[kind], options.facts_per_case,
                                             options.questions_per_case, draw),
                        draw);
      set.cases.push_back(writer.write(fmt::format("{}-{}", kSyntheticKinds[kind], number + 1)));
    }
  }
  return set;
}

}  // namespace inferscale::cli
