#include "cli/eval/synthetic_draft.h"

#include <fmt/format.h>

#include <numeric>
#include <span>

#include "cli/eval/synthetic_words.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kGroupValues = 5;

class Drafter {
 public:
  Drafter(std::size_t facts, std::size_t questions, SeededDraw& draw)
      : facts_(facts), questions_(questions), draw_(draw), decks_(kSyntheticTopics) {
    const std::span<const SyntheticName> names = synthetic_names();
    names_.assign(names.begin(), names.end());
    draw_.shuffle(names_);
    topics_ = first_numbers(kSyntheticTopics);
    draw_.shuffle(topics_);
    case_.speakers[0] = next_name().name;
    case_.speakers[1] = next_name().name;
  }

  SyntheticCaseDraft draft(std::string_view kind) {
    if (kind == "single_hop") {
      plain_facts(facts_, std::clamp<std::size_t>(facts_ / kGroupValues, 1, kSyntheticTopics));
      ask_plain_facts();
    } else if (kind == "distractors") {
      coloured_things();
    } else {
      for (std::size_t group = 0; group < questions_; ++group) {
        add_group(kind, group);
      }
      plain_facts(facts_ - case_.drafts.size(), kSyntheticTopics);
    }
    return std::move(case_);
  }

 private:
  static std::vector<std::size_t> first_numbers(std::size_t count) {
    std::vector<std::size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return numbers;
  }

  /// As many drafts as there are questions.
  std::vector<std::size_t> some_drafts() {
    std::vector<std::size_t> some = first_numbers(case_.drafts.size());
    draw_.shuffle(some);
    some.resize(questions_);
    return some;
  }

  SyntheticName next_name() {
    const SyntheticName name = names_.back();
    names_.pop_back();
    return name;
  }

  /// Values come from a shuffled deck, so that the first ones of a topic are all different.
  std::string_view next_value(std::size_t topic) {
    std::vector<std::string_view>& deck = decks_[topic];
    if (deck.empty()) {
      const std::span<const std::string_view> values = synthetic_topics()[topic].values;
      deck.assign(values.begin(), values.end());
      draw_.shuffle(deck);
    }
    const std::string_view value = deck.back();
    deck.pop_back();
    return value;
  }

  std::size_t add(std::size_t topic, std::string_view pattern, std::string_view name,
                  std::string_view value, std::string_view day = "") {
    SyntheticDraft& draft = case_.drafts.emplace_back();
    draft.text = fill_words(pattern, {{"{N}", name}, {"{V}", value}, {"{D}", day}});
    draft.value = value;
    draft.topic = topic;
    return case_.drafts.size() - 1;
  }

  void plain_facts(std::size_t count, std::size_t topics) {
    SyntheticName name;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % topics == 0) {
        name = next_name();
      }
      const std::size_t topic = topics_[i % topics];
      subjects_.push_back(name.name);
      add(topic, synthetic_topics()[topic].state, name.name, next_value(topic));
    }
  }

  void ask_plain_facts() {
    std::vector<std::size_t> asked(case_.drafts.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i] = i;
    }
    draw_.shuffle(asked);
    asked.resize(questions_);
    for (const std::size_t draft : asked) {
      const std::size_t topic = case_.drafts[draft].topic;
      case_.asks.push_back(
          {fill_words(synthetic_topics()[topic].state_question, {{"{N}", subjects_[draft]}}),
           case_.drafts[draft].value,
           topic,
           {draft},
           {}});
    }
  }

  void coloured_things() {
    SyntheticName name;
    const std::size_t things = kSyntheticThings.size();
    std::vector<std::string> owned;
    for (std::size_t i = 0; i < facts_; ++i) {
      if (i % things == 0) {
        name = next_name();
      }
      owned.push_back(fmt::format("{}'s {}", name.name, kSyntheticThings[i % things]));
      add(kColourTopic, "{N} is {V}.", owned.back(), next_value(kColourTopic));
    }
    std::vector<std::size_t> asked(case_.drafts.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i] = i;
    }
    draw_.shuffle(asked);
    asked.resize(questions_);
    for (const std::size_t draft : asked) {
      std::vector<std::size_t> rivals;
      for (std::size_t other = 0; other < case_.drafts.size(); ++other) {
        if (other / things == draft / things || other % things == draft % things) {
          rivals.push_back(other);
        }
      }
      draw_.shuffle(rivals);
      case_.asks.push_back({fmt::format("What color is {}?", owned[draft]),
                            case_.drafts[draft].value,
                            kColourTopic,
                            {draft},
                            rivals});
    }
  }

  void add_group(std::string_view kind, std::size_t group) {
    const std::size_t topic = topics_[group];
    if (kind == "multi_value" && group % 2 == 0) {
      add_weekly(topic);
    } else if (kind == "multi_value") {
      add_events(topic);
    } else if (kind == "two_hop") {
      add_relation(topic, kSyntheticRelations[group]);
    } else if (kind == "update") {
      add_update(topic, group);
    } else {
      add_pronouns(topic);
    }
  }

  /// All drafts since `first` but `answer`.
  std::vector<std::size_t> rivals(std::size_t first, std::size_t answer) const {
    std::vector<std::size_t> found;
    for (std::size_t draft = first; draft < case_.drafts.size(); ++draft) {
      if (draft != answer) {
        found.push_back(draft);
      }
    }
    return found;
  }

  void add_weekly(std::size_t topic) {
    const std::string_view name = next_name().name;
    const std::size_t first = case_.drafts.size();
    for (const std::string_view day : kSyntheticDays) {
      add(topic, synthetic_topics()[topic].weekly, name, next_value(topic), day);
    }
    const std::size_t asked = draw_.index(kSyntheticDays.size());
    case_.asks.push_back({fill_words(synthetic_topics()[topic].weekly_question,
                                     {{"{N}", name}, {"{D}", kSyntheticDays[asked]}}),
                          case_.drafts[first + asked].value,
                          topic,
                          {first + asked},
                          rivals(first, first + asked)});
  }

  void add_events(std::size_t topic) {
    const std::string_view name = next_name().name;
    const std::size_t first = case_.drafts.size();
    std::vector<std::size_t> in_order;
    for (std::size_t i = 0; i < kGroupValues; ++i) {
      in_order.push_back(add(topic, synthetic_topics()[topic].event, name, next_value(topic)));
    }
    case_.ordered.push_back(in_order);
    const std::size_t last = in_order.back();
    case_.asks.push_back(
        {fill_words(synthetic_topics()[topic].last_event_question, {{"{N}", name}}),
         case_.drafts[last].value,
         topic,
         {last},
         rivals(first, last)});
  }

  /// Two people with such a relation, what is true of the first and of both relations, and of one
  /// more.
  void add_relation(std::size_t topic, std::string_view relation) {
    const SyntheticTopic& words = synthetic_topics()[topic];
    const std::string_view who = next_name().name;
    const std::string_view related = next_name().name;
    const std::string_view other = next_name().name;
    const std::string_view other_related = next_name().name;
    const std::string leads = fmt::format("{{N}}'s {} is {{V}}.", relation);
    const std::size_t hop = add(topic, leads, who, related);
    const std::size_t other_hop = add(topic, leads, other, other_related);
    case_.drafts[hop].value = case_.drafts[other_hop].value = "";
    const std::size_t first = case_.drafts.size();
    for (const std::string_view name : {related, who, other_related, next_name().name}) {
      add(topic, words.state, name, next_value(topic));
    }
    case_.asks.push_back(
        {fill_words(words.state_question, {{"{N}", fmt::format("{}'s {}", who, relation)}}),
         case_.drafts[first].value,
         topic,
         {hop, first},
         rivals(first, first)});
  }

  void add_update(std::size_t topic, std::size_t group) {
    const SyntheticTopic& words = synthetic_topics()[topic];
    const bool current = group % 2 == 0;
    // Every other time the new fact says itself that it is new.
    const std::string_view changed = group % 4 == 2 ? words.now_state : words.state;
    const std::string_view name = next_name().name;
    const std::string_view other = next_name().name;
    const std::size_t before = add(topic, words.state, name, next_value(topic));
    const std::size_t after = add(topic, changed, name, next_value(topic));
    const std::size_t other_before = add(topic, words.state, other, next_value(topic));
    const std::size_t other_after = add(topic, changed, other, next_value(topic));
    add(topic, words.state, next_name().name, next_value(topic));
    case_.ordered.push_back({before, after});
    case_.ordered.push_back({other_before, other_after});
    const std::size_t asked = current ? after : before;
    case_.asks.push_back(
        {fill_words(current ? words.now_question : words.then_question, {{"{N}", name}}),
         case_.drafts[asked].value,
         topic,
         {asked},
         rivals(before, asked)});
  }

  void add_pronouns(std::size_t topic) {
    const SyntheticTopic& words = synthetic_topics()[topic];
    const std::size_t first = case_.drafts.size();
    const std::size_t asked = first + draw_.index(kGroupValues);
    std::string_view asked_name;
    for (std::size_t i = 0; i < kGroupValues; ++i) {
      const SyntheticName name = next_name();
      const std::size_t draft = add(topic, words.pronoun, name.name, next_value(topic));
      std::string& text = case_.drafts[draft].text;
      const std::string rest = fill_words(text, {{"{P}", ""}});
      text = (name.she ? "She" : "He") + rest;
      if (i % 2 == 0) {
        case_.drafts[draft].said = fmt::format("I met {}. {}", name.name, text);
      } else {
        case_.drafts[draft].asked_before = fmt::format("Is there news of {}?", name.name);
        case_.drafts[draft].said = fmt::format("Yes. {}", text);
      }
      asked_name = draft == asked ? name.name : asked_name;
    }
    case_.asks.push_back({fill_words(words.pronoun_question, {{"{N}", asked_name}}),
                          case_.drafts[asked].value,
                          topic,
                          {asked},
                          rivals(first, asked),
                          true});
  }

  const std::size_t facts_;
  const std::size_t questions_;
  SeededDraw& draw_;
  SyntheticCaseDraft case_;
  std::vector<SyntheticName> names_;  ///< not yet given to anybody
  std::vector<std::size_t> topics_;
  std::vector<std::vector<std::string_view>> decks_;
  std::vector<std::string_view> subjects_;  ///< of plain facts
};

}  // namespace

std::string fill_words(std::string_view pattern, std::initializer_list<SyntheticWord> words) {
  std::string text(pattern);
  for (const SyntheticWord& word : words) {
    for (std::size_t at = 0; (at = text.find(word.placeholder, at)) != std::string::npos;
         at += word.text.size()) {
      text.replace(at, word.placeholder.size(), word.text);
    }
  }
  return text;
}

SyntheticCaseDraft draft_synthetic_case(std::string_view kind, std::size_t facts,
                                        std::size_t questions, SeededDraw& draw) {
  return Drafter(facts, questions, draw).draft(kind);
}

}  // namespace inferscale::cli
