#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "base/day.h"
#include "base/hash.h"
#include "cli/eval/synthetic.h"
#include "cli/eval/synthetic_words.h"

namespace inferscale::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// A sentence of the table as a regular expression, and the order of its placeholders.
struct Form {
  std::regex pattern;
  std::vector<std::size_t> order;
};

const Form& form_of(std::string_view sentence) {
  static std::map<std::string, Form, std::less<>> forms;
  if (const auto known = forms.find(sentence); known != forms.end()) {
    return known->second;
  }
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t i = 0; i < 4; ++i) {
    static constexpr std::array<std::string_view, 4> kPlaceholders = {"{N}", "{V}", "{D}", "{P}"};
    const std::size_t at = sentence.find(kPlaceholders[i]);
    if (at != std::string_view::npos) {
      places.emplace_back(at, i);
    }
  }
  std::sort(places.begin(), places.end());
  Form form;
  for (const auto& place : places) {
    form.order.push_back(place.second);
  }
  std::string text = replaced(std::string(sentence), "?", "\\?");
  text = replaced(text, ".", "\\.");
  text = replaced(text, "{N}", "([A-Z][a-z]+(?:'s [a-z]+)?)");
  text = replaced(text, "{V}", "([A-Za-z]+)");
  text = replaced(text, "{D}", "([A-Z][a-z]+|\\d+ [A-Z][a-z]+ \\d{4})");
  text = replaced(text, "{P}", "(He|She)");
  form.pattern = std::regex(text);
  return forms.emplace(sentence, std::move(form)).first->second;
}

/// What stands for {N}, {V} and {D} in a text, or nothing when it is another sentence.
using Parts = std::tuple<std::string, std::string, std::string>;
std::optional<Parts> parse(std::string_view sentence, const std::string& text) {
  const Form& form = form_of(sentence);
  std::smatch found;
  if (!std::regex_match(text, found, form.pattern)) {
    return std::nullopt;
  }
  std::array<std::string, 4> parts;
  for (std::size_t i = 0; i < form.order.size(); ++i) {
    parts[form.order[i]] = found[i + 1].str();
  }
  return Parts(parts[0], parts[1], parts[2]);
}

/// Reads a case as a person would and answers its questions from what it says, knowing nothing of
/// how the set was made but the sentences.
class Reader {
 public:
  explicit Reader(const EvalCase& a_case) : case_(a_case) {}

  /// Every answer that the case gives: one if all is well.
  std::set<std::string> answers(const EvalQuestion& question) const {
    std::set<std::string> found;
    for (std::size_t topic = 0; topic < kSyntheticTopics; ++topic) {
      const SyntheticTopic& words = synthetic_topics()[topic];
      if (const auto asked = parse(words.then_question, question.text)) {
        take(found, states(words, std::get<0>(*asked), std::get<2>(*asked)), false);
      } else if (const auto now = parse(words.now_question, question.text)) {
        take(found, states(words, std::get<0>(*now), ""), true);
      } else if (const auto plain = parse(words.state_question, question.text)) {
        take(found, states(words, person(std::get<0>(*plain)), ""), false);
      } else if (const auto last = parse(words.last_event_question, question.text)) {
        take(found, events(words, std::get<0>(*last)), true);
      } else if (const auto weekly = parse(words.weekly_question, question.text)) {
        take(found, on_day(words, std::get<0>(*weekly), std::get<2>(*weekly)), false);
      } else if (const auto pronoun = parse(words.pronoun_question, question.text)) {
        take(found, of_pronoun(words, std::get<0>(*pronoun)), false);
      }
    }
    if (const auto thing = parse("What color is {N}?", question.text)) {
      for (const FactInput& fact : case_.facts) {
        const auto said = parse("{N} is {V}.", fact.text);
        if (said && std::get<0>(*said) == std::get<0>(*thing)) {
          found.insert(std::get<1>(*said));
        }
      }
    }
    return found;
  }

 private:
  using Dated = std::vector<std::pair<std::string, std::string>>;  // time, value

  static void take(std::set<std::string>& found, Dated said, bool latest_only) {
    std::sort(said.begin(), said.end());
    if (latest_only && !said.empty()) {
      found.insert(said.back().second);
      return;
    }
    for (const auto& [time, value] : said) {
      found.insert(value);
    }
  }

  /// "Anna's neighbour" is somebody with a name; a name is itself.
  std::string person(const std::string& who) const {
    for (const FactInput& fact : case_.facts) {
      for (const std::string_view relation : kSyntheticRelations) {
        const auto said = parse("{N}'s " + std::string(relation) + " is {V}.", fact.text);
        if (said && std::get<0>(*said) + "'s " + std::string(relation) == who) {
          return std::get<1>(*said);
        }
      }
    }
    return who;
  }

  Dated states(const SyntheticTopic& words, const std::string& who, const std::string& day) const {
    Dated found;
    for (const FactInput& fact : case_.facts) {
      for (const std::string_view form : {words.now_state, words.state}) {
        const auto said = parse(form, fact.text);
        if (said && std::get<0>(*said) == who &&
            (day.empty() || format_day(parse_rfc3339(fact.event_time)->time) == day)) {
          found.emplace_back(fact.event_time, std::get<1>(*said));
          break;
        }
      }
    }
    return found;
  }

  Dated events(const SyntheticTopic& words, const std::string& who) const {
    Dated found;
    for (const FactInput& fact : case_.facts) {
      const auto said = parse(words.event, fact.text);
      if (said && std::get<0>(*said) == who) {
        found.emplace_back(fact.event_time, std::get<1>(*said));
      }
    }
    return found;
  }

  Dated on_day(const SyntheticTopic& words, const std::string& who, const std::string& day) const {
    Dated found;
    for (const FactInput& fact : case_.facts) {
      const auto said = parse(words.weekly, fact.text);
      if (said && std::get<0>(*said) == who && std::get<2>(*said) == day) {
        found.emplace_back(fact.event_time, std::get<1>(*said));
      }
    }
    return found;
  }

  /// Who is meant stands in the source turn or the one before.
  Dated of_pronoun(const SyntheticTopic& words, const std::string& who) const {
    Dated found;
    for (const FactInput& fact : case_.facts) {
      const auto said = parse(words.pronoun, fact.text);
      if (!said) {
        continue;
      }
      for (std::size_t i = 0; i < case_.turns.size(); ++i) {
        if (case_.turns[i].id == fact.source_turns.front() &&
            (case_.turns[i].text.find(who) != std::string::npos ||
             (case_.turns[i].text.substr(0, 4) == "Yes." &&
              case_.turns[i - 1].text.find(who) != std::string::npos))) {
          found.emplace_back(fact.event_time, std::get<1>(*said));
        }
      }
    }
    return found;
  }

  const EvalCase& case_;
};

EvalSet make(std::uint64_t seed, std::uint32_t cases, std::uint32_t facts,
             std::uint32_t questions) {
  auto set = make_synthetic_set({seed, cases, facts, questions});
  EXPECT_TRUE(set.ok()) << set.status().to_string();
  return set.ok() ? std::move(*set) : EvalSet();
}

/// Sets of every size that is allowed, with other seeds.
std::vector<EvalSet> samples() {
  std::vector<EvalSet> sets;
  sets.push_back(make(1, 12, 40, 4));
  sets.push_back(make(2, 6, 16, 1));
  sets.push_back(make(3, 6, 16, 2));
  sets.push_back(make(4, 6, 64, 8));
  sets.push_back(make(5, 4, 128, 8));
  sets.push_back(make(~0ULL, 4, 128, 1));
  return sets;
}

template <typename Check>
void each_question(const std::vector<EvalSet>& sets, const Check& check) {
  for (const EvalSet& set : sets) {
    for (const EvalCase& a_case : set.cases) {
      for (const EvalQuestion& question : a_case.questions) {
        SCOPED_TRACE(a_case.id + " " + question.id + " " + question.text);
        check(a_case, question);
      }
    }
  }
}

TEST(SyntheticWords, AreDistinct) {
  std::set<std::string_view> words;
  for (const SyntheticTopic& topic : synthetic_topics()) {
    EXPECT_GE(topic.values.size(), 8U);
    for (const std::string_view value : topic.values) {
      EXPECT_TRUE(words.insert(value).second) << value;
    }
  }
  for (const SyntheticName& name : synthetic_names()) {
    EXPECT_TRUE(words.insert(name.name).second) << name.name;
    for (const SyntheticName& other : synthetic_names()) {
      EXPECT_TRUE(&name == &other || name.name.find(other.name) == std::string_view::npos)
          << name.name << " " << other.name;
    }
  }
}

TEST(SyntheticSet, EveryAnswerFollowsFromTheFactsAndNothingElseDoes) {
  std::map<std::string, std::size_t> asked;
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    EXPECT_THAT(Reader(a_case).answers(question), ElementsAre(question.answer));
    ASSERT_FALSE(question.evidence.empty());
    EXPECT_THAT(a_case.facts.at(question.evidence.back()).text, HasSubstr(question.answer));
    ++asked[question.category];
  });
  EXPECT_EQ(asked.size(), kSyntheticKinds.size());
}

TEST(SyntheticSet, EvidenceAloneGivesTheAnswer) {
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    EvalCase evidence = a_case;
    evidence.facts.clear();
    for (const std::size_t fact : question.evidence) {
      evidence.facts.push_back(a_case.facts.at(fact));
    }
    EXPECT_THAT(Reader(evidence).answers(question), ElementsAre(question.answer));
    for (std::size_t left_out = 0; left_out < evidence.facts.size(); ++left_out) {
      EvalCase less = evidence;
      less.facts.erase(less.facts.begin() + static_cast<std::ptrdiff_t>(left_out));
      EXPECT_TRUE(Reader(less).answers(question).empty());
    }
  });
}

TEST(SyntheticSet, DistractorsAreOtherValuesOfTheCase) {
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    EXPECT_GE(question.distractors.size(), 3U);
    EXPECT_LE(question.distractors.size(), 7U);
    std::set<std::string> distinct(question.distractors.begin(), question.distractors.end());
    EXPECT_EQ(distinct.size(), question.distractors.size());
    EXPECT_FALSE(distinct.contains(question.answer));
    const auto& topics = synthetic_topics();
    const auto topic = std::find_if(topics.begin(), topics.end(), [&](const auto& one) {
      return std::find(one.values.begin(), one.values.end(), question.answer) != one.values.end();
    });
    ASSERT_NE(topic, topics.end());
    for (const std::string& word : question.distractors) {
      EXPECT_NE(std::find(topic->values.begin(), topic->values.end(), word), topic->values.end());
      EXPECT_TRUE(std::any_of(a_case.facts.begin(), a_case.facts.end(), [&](const auto& fact) {
        return fact.text.find(word) != std::string::npos;
      })) << word;
    }
  });
}

TEST(SyntheticSet, HasTheSizesAskedForAndUniqueNames) {
  const EvalSet set = make(7, 3, 64, 8);
  EXPECT_EQ(set.name, "synthetic");
  ASSERT_EQ(set.cases.size(), 3 * kSyntheticKinds.size());
  std::set<std::string> cases;
  for (const EvalCase& a_case : set.cases) {
    EXPECT_TRUE(cases.insert(a_case.id).second);
    EXPECT_EQ(a_case.facts.size(), 64U);
    EXPECT_EQ(a_case.questions.size(), 8U);
    std::set<std::string> questions;
    std::set<std::string> texts;
    std::set<std::string> facts;
    std::set<std::string> turns;
    for (const EvalQuestion& question : a_case.questions) {
      EXPECT_TRUE(questions.insert(question.id).second);
      EXPECT_TRUE(texts.insert(question.text).second) << question.text;
      EXPECT_EQ(question.text.find('{'), std::string::npos) << question.text;
    }
    for (const FactInput& fact : a_case.facts) {
      EXPECT_TRUE(facts.insert(fact.text).second) << fact.text;
      EXPECT_EQ(fact.text.find('{'), std::string::npos) << fact.text;
    }
    for (const TurnInput& turn : a_case.turns) {
      EXPECT_TRUE(turns.insert(turn.id).second);
    }
  }
}

TEST(SyntheticSet, FactsAreDatedInOrderAndComeFromTurns) {
  for (const EvalSet& set : samples()) {
    for (const EvalCase& a_case : set.cases) {
      TimestampUs before = 0;
      std::set<std::string_view> speakers;
      std::map<std::string, const TurnInput*> turns;
      for (const TurnInput& turn : a_case.turns) {
        speakers.insert(turn.speaker);
        turns[turn.id] = &turn;
      }
      EXPECT_EQ(speakers.size(), 2U);
      for (const FactInput& fact : a_case.facts) {
        const auto time = parse_rfc3339(fact.event_time);
        ASSERT_TRUE(time.ok());
        EXPECT_GT(time->time, before);
        before = time->time;
        ASSERT_EQ(fact.source_turns.size(), 1U);
        ASSERT_TRUE(turns.contains(fact.source_turns[0]));
        EXPECT_THAT(turns[fact.source_turns[0]]->text, HasSubstr(fact.text));
        EXPECT_EQ(turns[fact.source_turns[0]]->event_time, fact.event_time);
        for (const std::string_view speaker : speakers) {
          EXPECT_EQ(fact.text.find(speaker), std::string::npos);
        }
      }
    }
  }
}

TEST(SyntheticSet, EvidenceIsDispersedAndNeverAtTheEnd) {
  std::vector<std::size_t> quarters(4);
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    const std::size_t facts = a_case.facts.size();
    for (const std::size_t fact : question.evidence) {
      EXPECT_LT(fact, facts - facts / 8);
      ++quarters[fact * 4 / facts];
    }
  });
  const std::size_t all = quarters[0] + quarters[1] + quarters[2] + quarters[3];
  for (const std::size_t quarter : quarters) {
    EXPECT_GT(quarter, all / 12);
  }
}

TEST(SyntheticSet, UpdatesAskForTheCurrentValueAndForAnEarlierOne) {
  std::size_t current = 0;
  std::size_t earlier = 0;
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    if (question.category != "update") {
      return;
    }
    const FactInput& evidence = a_case.facts.at(question.evidence.front());
    const std::string day = format_day(parse_rfc3339(evidence.event_time)->time);
    const bool then = question.text.find(day) != std::string::npos;
    ++(then ? earlier : current);
    // Who is asked about has exactly two facts, of which the evidence is the one that it should be.
    std::string name;
    for (const SyntheticName& one : synthetic_names()) {
      name = question.text.find(one.name) != std::string::npos ? std::string(one.name) : name;
    }
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < a_case.facts.size(); ++i) {
      if (a_case.facts[i].text.find(name) == 0) {
        own.push_back(i);
      }
    }
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(question.evidence.front(), then ? own[0] : own[1]);
  });
  EXPECT_GT(current, 10U);
  EXPECT_GT(earlier, 10U);
}

TEST(SyntheticSet, PronounFactsNameNobodyAndTheirTurnsDo) {
  std::size_t in_source = 0;
  std::size_t before = 0;
  each_question(samples(), [&](const EvalCase& a_case, const EvalQuestion& question) {
    EXPECT_EQ(question.needed_turns.empty(), question.category != "pronoun");
    if (question.needed_turns.empty()) {
      return;
    }
    const FactInput& fact = a_case.facts.at(question.evidence.front());
    EXPECT_EQ(a_case.turns.at(question.needed_turns.back()).id, fact.source_turns.front());
    std::string_view asked;
    for (const SyntheticName& name : synthetic_names()) {
      EXPECT_EQ(fact.text.find(name.name), std::string::npos) << fact.text;
      if (question.text.find(name.name) != std::string::npos) {
        asked = name.name;
        EXPECT_EQ(fact.text.find(name.she ? "She " : "He "), 0U) << fact.text;
      }
    }
    ASSERT_FALSE(asked.empty());
    EXPECT_THAT(a_case.turns.at(question.needed_turns.front()).text, HasSubstr(std::string(asked)));
    ++(question.needed_turns.size() == 1 ? in_source : before);
  });
  EXPECT_GT(in_source, 5U);
  EXPECT_GT(before, 5U);
}

std::string digest(const EvalSet& set) {
  std::string all = set.name;
  for (const EvalCase& a_case : set.cases) {
    all += "\n# " + a_case.id;
    for (const TurnInput& turn : a_case.turns) {
      all += "\n" + turn.id + "|" + turn.speaker + "|" + turn.role + "|" + turn.text + "|" +
             turn.event_time;
    }
    for (const FactInput& fact : a_case.facts) {
      all += "\n" + fact.text + "|" + fact.event_time + "|" + fact.source_turns.front();
    }
    for (const EvalQuestion& question : a_case.questions) {
      all += "\n" + question.id + "|" + question.text + "|" + question.category + "|" +
             question.answer;
      for (const std::string& word : question.distractors) {
        all += "," + word;
      }
      for (const std::size_t fact : question.evidence) {
        all += " " + std::to_string(fact);
      }
      for (const std::size_t turn : question.needed_turns) {
        all += " t" + std::to_string(turn);
      }
    }
  }
  return sha256_128(std::as_bytes(std::span(all.data(), all.size()))).to_hex();
}

TEST(SyntheticSet, IsTheSameForASeedWhereverItIsMade) {
  EXPECT_EQ(digest(make(1, 8, 40, 4)), "bfb8e6929528d2cfe2bb4a8275b3deb6");
  EXPECT_NE(digest(make(2, 8, 40, 4)), digest(make(1, 8, 40, 4)));
}

TEST(SyntheticSet, ACaseDoesNotDependOnHowManyThereAre) {
  const EvalSet few = make(1, 2, 40, 4);
  const EvalSet many = make(1, 5, 40, 4);
  for (std::size_t kind = 0; kind < kSyntheticKinds.size(); ++kind) {
    for (std::size_t number = 0; number < 2; ++number) {
      const EvalCase& one = few.cases[kind * 2 + number];
      const EvalCase& other = many.cases[kind * 5 + number];
      EXPECT_EQ(digest({"x", {one}}), digest({"x", {other}}));
    }
  }
}

TEST(SyntheticSet, RefusesWhatIsOutOfBoundsAndNamesIt) {
  const std::vector<std::pair<SyntheticOptions, const char*>> refused = {
      {{1, 0, 40, 4}, "cases per kind"},     {{1, 1001, 40, 4}, "cases per kind"},
      {{1, 1, 15, 1}, "facts per case"},     {{1, 1, 129, 1}, "facts per case"},
      {{1, 1, 31, 4}, "facts per case"},     {{1, 1, 40, 0}, "questions per case"},
      {{1, 1, 128, 9}, "questions per case"}};
  for (const auto& [options, field] : refused) {
    const auto set = make_synthetic_set(options);
    ASSERT_FALSE(set.ok()) << field;
    EXPECT_EQ(set.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(set.status().message(), HasSubstr(field));
  }
}

}  // namespace
}  // namespace inferscale::cli
