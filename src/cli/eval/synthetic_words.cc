#include "cli/eval/synthetic_words.h"

namespace inferscale::cli {
namespace {

constexpr std::array<std::string_view, 12> kCities = {"London", "Paris",   "Rome",   "Berlin",
                                                      "Madrid", "Boston",  "Dallas", "Seattle",
                                                      "Tokyo",  "Chicago", "Sydney", "Dublin"};
constexpr std::array<std::string_view, 12> kColours = {"red",    "blue",   "green", "yellow",
                                                       "black",  "white",  "brown", "pink",
                                                       "orange", "purple", "gray",  "gold"};
constexpr std::array<std::string_view, 12> kAnimals = {"dog",    "cat",   "horse", "rabbit",
                                                       "bird",   "mouse", "snake", "goat",
                                                       "turtle", "pig",   "duck",  "fish"};
constexpr std::array<std::string_view, 12> kFoods = {"pizza",  "rice",  "soup",  "bread",
                                                     "cheese", "salad", "pasta", "beans",
                                                     "eggs",   "corn",  "cake",  "chicken"};
constexpr std::array<std::string_view, 10> kDrinks = {"tea",  "coffee", "milk", "juice", "water",
                                                      "wine", "beer",   "soda", "cider", "cocoa"};
constexpr std::array<std::string_view, 12> kNumbers = {"two", "three",  "four",   "five",
                                                       "six", "seven",  "eight",  "nine",
                                                       "ten", "eleven", "twelve", "twenty"};
constexpr std::array<std::string_view, 10> kInstruments = {
    "piano", "guitar", "violin", "flute", "drums", "trumpet", "harp", "cello", "banjo", "organ"};
constexpr std::array<std::string_view, 12> kSports = {
    "tennis", "football", "golf",     "hockey", "soccer",  "boxing",
    "chess",  "rugby",    "baseball", "skiing", "cricket", "swimming"};

constexpr std::array<SyntheticTopic, kSyntheticTopics> kTopics = {{
    {kCities, "{N} lives in {V}.", "Which city does {N} live in?", "{N} now lives in {V}.",
     "Which city does {N} live in now?", "Which city did {N} live in on {D}?", "{N} visited {V}.",
     "Which city did {N} visit last?", "{N} works in {V} on {D}s.",
     "Which city does {N} work in on {D}s?", "{P} moved to {V}.", "Which city did {N} move to?"},
    {kColours, "{N}'s locker is {V}.", "What color is {N}'s locker?", "{N}'s locker is now {V}.",
     "What color is {N}'s locker now?", "What color was {N}'s locker on {D}?",
     "{N} painted the door {V}.", "What color did {N} paint the door last?",
     "{N} wears {V} on {D}s.", "What color does {N} wear on {D}s?", "{P} painted the house {V}.",
     "What color did {N} paint the house?"},
    {kAnimals, "{N}'s pet is a {V}.", "What animal is {N}'s pet?", "{N}'s pet is now a {V}.",
     "What animal is {N}'s pet now?", "What animal was {N}'s pet on {D}?", "{N} drew a {V}.",
     "What animal did {N} draw last?", "{N} feeds the {V} on {D}s.",
     "What animal does {N} feed on {D}s?", "{P} adopted a {V}.", "What animal did {N} adopt?"},
    {kFoods, "{N} eats {V} for lunch.", "What does {N} eat for lunch?",
     "{N} now eats {V} for lunch.", "What does {N} eat for lunch now?",
     "What did {N} eat for lunch on {D}?", "{N} cooked {V}.", "What did {N} cook last?",
     "{N} has {V} for dinner on {D}s.", "What does {N} have for dinner on {D}s?",
     "{P} brought {V} to the party.", "What did {N} bring to the party?"},
    {kDrinks, "{N} drinks {V} after work.", "What does {N} drink after work?",
     "{N} now drinks {V} after work.", "What does {N} drink after work now?",
     "What did {N} drink after work on {D}?", "{N} ordered {V}.", "What did {N} order last?",
     "{N} serves {V} on {D}s.", "What does {N} serve on {D}s?", "{P} spilled {V} on the carpet.",
     "What did {N} spill on the carpet?"},
    {kNumbers, "{N} has {V} cousins.", "How many cousins does {N} have?",
     "{N} now has {V} cousins.", "How many cousins does {N} have now?",
     "How many cousins did {N} have on {D}?", "{N} ran {V} miles.",
     "How many miles did {N} run last?", "{N} teaches {V} lessons on {D}s.",
     "How many lessons does {N} teach on {D}s?", "{P} sold {V} tickets.",
     "How many tickets did {N} sell?"},
    {kInstruments, "{N} plays the {V}.", "Which instrument does {N} play?",
     "{N} now plays the {V}.", "Which instrument does {N} play now?",
     "Which instrument did {N} play on {D}?", "{N} repaired the {V}.",
     "Which instrument did {N} repair last?", "{N} practices the {V} on {D}s.",
     "Which instrument does {N} practice on {D}s?", "{P} broke the {V}.",
     "Which instrument did {N} break?"},
    {kSports, "{N}'s favorite sport is {V}.", "What is {N}'s favorite sport?",
     "{N}'s favorite sport is now {V}.", "What is {N}'s favorite sport now?",
     "What was {N}'s favorite sport on {D}?", "{N} watched {V}.", "Which sport did {N} watch last?",
     "{N} goes to {V} on {D}s.", "Which sport does {N} go to on {D}s?", "{P} gave up {V}.",
     "Which sport did {N} give up?"},
}};

constexpr std::array<SyntheticName, 64> kNames = {{
    {"Alice", true},  {"Bruno"},    {"Carla", true},   {"David"},  {"Emma", true},    {"Felix"},
    {"Grace", true},  {"Hugo"},     {"Irene", true},   {"Jack"},   {"Karen", true},   {"Leon"},
    {"Maria", true},  {"Nathan"},   {"Olivia", true},  {"Peter"},  {"Rachel", true},  {"Simon"},
    {"Tina", true},   {"Victor"},   {"Wendy", true},   {"Adam"},   {"Bella", true},   {"Charles"},
    {"Diana", true},  {"Edward"},   {"Fiona", true},   {"George"}, {"Helen", true},   {"Ivan"},
    {"Julia", true},  {"Kevin"},    {"Laura", true},   {"Martin"}, {"Nora", true},    {"Oscar"},
    {"Paula", true},  {"Robert"},   {"Sarah", true},   {"Thomas"}, {"Ursula", true},  {"Walter"},
    {"Amanda", true}, {"Brian"},    {"Cynthia", true}, {"Dennis"}, {"Esther", true},  {"Frank"},
    {"Gloria", true}, {"Henry"},    {"Ingrid", true},  {"Jonas"},  {"Kate", true},    {"Louis"},
    {"Monica", true}, {"Nicholas"}, {"Pamela", true},  {"Philip"}, {"Rebecca", true}, {"Samuel"},
    {"Teresa", true}, {"Vincent"},  {"Yvonne", true},  {"Albert"},
}};

}  // namespace

const std::array<SyntheticTopic, kSyntheticTopics>& synthetic_topics() { return kTopics; }

std::span<const SyntheticName> synthetic_names() { return kNames; }

}  // namespace inferscale::cli
