#pragma once

#include <array>
#include <span>
#include <string_view>

namespace inferscale::cli {

/// A kind of value and the sentences that state it and ask for it. {N} is who has it, {V} the
/// value, {D} a date ("8 May 2023") or a day of the week, {P} "She" or "He". Statements with {N}
/// begin with it. No two sentences of the whole table state the same.
struct SyntheticTopic {
  std::span<const std::string_view> values;  ///< at least 8, all different in the whole table
  std::string_view state, state_question;
  std::string_view now_state, now_question, then_question;
  std::string_view event, last_event_question;
  std::string_view weekly, weekly_question;
  std::string_view pronoun, pronoun_question;
};

inline constexpr std::size_t kSyntheticTopics = 8;
[[nodiscard]] const std::array<SyntheticTopic, kSyntheticTopics>& synthetic_topics();

/// The topic whose values are colours.
inline constexpr std::size_t kColourTopic = 1;
/// Things that have a colour: "{N}'s coat is red."
inline constexpr std::array<std::string_view, 8> kSyntheticThings = {
    "coat", "car", "tent", "mug", "kayak", "bicycle", "umbrella", "scarf"};
/// "{N}'s neighbour is {V}."
inline constexpr std::array<std::string_view, 8> kSyntheticRelations = {
    "manager", "neighbour", "teacher", "doctor", "landlord", "coach", "flatmate", "dentist"};
inline constexpr std::array<std::string_view, 5> kSyntheticDays = {"Monday", "Tuesday", "Wednesday",
                                                                   "Thursday", "Friday"};

struct SyntheticName {
  std::string_view name;
  bool she = false;
};
/// Common first names, none of which is part of another, of a value or of a sentence of the table.
[[nodiscard]] std::span<const SyntheticName> synthetic_names();

}  // namespace inferscale::cli
