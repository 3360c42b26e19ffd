#include "memory/contexts/scope_names.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::size_t kNames = 2;
constexpr std::size_t kMaxNameBytes = 40;
constexpr std::size_t kFactsRead = 256;

constexpr std::array<std::string_view, 29> kNoNames = {
    "A",   "An",    "The",  "This", "That", "These", "Those", "I",     "You",      "He",
    "She", "It",    "We",   "They", "My",   "Your",  "His",   "Her",   "Its",      "Our",
    "In",  "Their", "User", "On",   "At",   "After", "There", "Since", "Assistant"};

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) {
  return is_upper(c) || (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
}

struct Counted {
  std::string name;
  std::size_t count = 0;
};

/// The most frequent, among equals the first; in the order in which they came.
std::vector<std::string> most_frequent(const std::vector<Counted>& in_order) {
  std::vector<Counted> ranked = in_order;
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Counted& a, const Counted& b) { return a.count > b.count; });
  ranked.resize(std::min(ranked.size(), kNames));
  std::vector<std::string> names;
  for (const Counted& entry : in_order) {
    if (std::any_of(ranked.begin(), ranked.end(),
                    [&](const Counted& chosen) { return chosen.name == entry.name; })) {
      names.push_back(entry.name);
    }
  }
  return names;
}

Result<std::vector<std::string>> names_in_facts(Catalog& catalog, const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts,
                              catalog.facts_before(scope, INT64_MAX, kFactsRead));
  std::vector<Counted> counts;
  for (const Fact& fact : facts) {
    const std::string name = leading_name(fact.text);
    if (name.empty()) {
      continue;
    }
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const Counted& entry) { return entry.name == name; });
    if (known == counts.end()) {
      counts.push_back({name, 1});
    } else {
      ++known->count;
    }
  }
  return most_frequent(counts);
}

}  // namespace

std::string leading_name(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && is_letter(text[end])) {
    ++end;
  }
  // What ends the word must end it in writing, too: no "X5" and no "B-side".
  const bool whole = end == text.size() || text[end] == ' ' || text[end] == ',' ||
                     text[end] == '\'' || text[end] == ':' || text[end] == '.';
  const std::string_view name = text.substr(0, end);
  if (!whole || name.size() < 2 || name.size() > kMaxNameBytes || !is_upper(name.front()) ||
      std::find(kNoNames.begin(), kNoNames.end(), name) != kNoNames.end()) {
    return {};
  }
  return std::string(name);
}

Result<std::vector<std::string>> scope_names(Catalog& catalog, const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> speakers,
                              catalog.speakers(scope, kNames));
  std::vector<std::string> names;
  for (const std::string& speaker : speakers) {
    std::string name = single_line(speaker);
    if (!name.empty() && name.size() <= kMaxNameBytes) {
      names.push_back(std::move(name));
    }
  }
  return names.empty() ? names_in_facts(catalog, scope) : names;
}

}  // namespace inferscale
