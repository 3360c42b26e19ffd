#include "cli/import/json_slices.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

Status bad_json(std::string_view what, std::size_t offset) {
  return invalid_argument(fmt::format("not valid JSON at byte {}: {}", offset, what));
}

std::size_t skip_space(std::string_view text, std::size_t from) {
  return std::min(text.find_first_not_of(kSpace, from), text.size());
}

/// One past the closing quote of the string whose opening quote is at `from`.
Result<std::size_t> string_end(std::string_view text, std::size_t from) {
  for (std::size_t i = from + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    } else if (static_cast<unsigned char>(text[i]) < 0x20) {
      return bad_json("a control character inside a string", i);
    }
  }
  return bad_json("a string that does not end", from);
}

std::size_t scalar_end(std::string_view text, std::size_t from) {
  return std::min(text.find_first_of(",]}[{\":"
                                     " \t\r\n",
                                     from),
                  text.size());
}

/// Ends of an array or object: only brackets, strings and depth are looked at.
Result<std::size_t> container_end(std::string_view text, std::size_t from) {
  std::string closers;
  std::size_t i = from;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '"') {
      INFERSCALE_ASSIGN_OR_RETURN(i, string_end(text, i));
      continue;
    }
    if (c == '[' || c == '{') {
      closers.push_back(c == '[' ? ']' : '}');
      if (closers.size() > kMaxJsonDepth) {
        return bad_json(fmt::format("nested deeper than {} levels", kMaxJsonDepth), i);
      }
    } else if (c == ']' || c == '}') {
      if (closers.back() != c) {
        return bad_json(fmt::format("'{}' closes nothing", c), i);
      }
      closers.pop_back();
      if (closers.empty()) {
        return i + 1;
      }
    }
    ++i;
  }
  return bad_json("it ends too early, inside an array or object", text.size());
}

/// Steps over what follows an element: returns the start of the next one, or npos at `closer`.
Result<std::size_t> after_element(std::string_view text, std::size_t at, char closer) {
  at = skip_space(text, at);
  if (at < text.size() && text[at] == closer) {
    return std::string_view::npos;
  }
  if (at >= text.size() || text[at] != ',') {
    return bad_json(fmt::format("expected ',' or '{}'", closer), at);
  }
  return skip_space(text, at + 1);
}

/// The place after the opening bracket, or npos when the container is empty.
Result<std::size_t> enter(std::string_view text, char opener, char closer) {
  const std::size_t at = skip_space(text, 0);
  if (at >= text.size() || text[at] != opener) {
    return bad_json(fmt::format("expected '{}'", opener), at);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::size_t end, container_end(text, at));
  if (skip_space(text, end) != text.size()) {
    return bad_json("something follows the document", skip_space(text, end));
  }
  const std::size_t first = skip_space(text, at + 1);
  return text[first] == closer ? std::string_view::npos : first;
}

}  // namespace

std::string_view trim_json(std::string_view text) {
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  text.remove_prefix(skip_space(text, 0));
  while (!text.empty() && kSpace.find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  return text;
}

Result<std::size_t> json_value_end(std::string_view text, std::size_t from) {
  if (from >= text.size()) {
    return bad_json("it ends where a value should be", from);
  }
  switch (text[from]) {
    case '"':
      return string_end(text, from);
    case '[':
    case '{':
      return container_end(text, from);
    default: {
      const std::size_t end = scalar_end(text, from);
      if (end == from) {
        return bad_json("expected a value", from);
      }
      return end;
    }
  }
}

Result<std::vector<std::string_view>> json_elements(std::string_view text) {
  std::vector<std::string_view> elements;
  INFERSCALE_ASSIGN_OR_RETURN(std::size_t at, enter(text, '[', ']'));
  while (at != std::string_view::npos) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::size_t end, json_value_end(text, at));
    elements.push_back(text.substr(at, end - at));
    INFERSCALE_ASSIGN_OR_RETURN(at, after_element(text, end, ']'));
  }
  return elements;
}

Result<std::vector<JsonMember>> json_members(std::string_view text) {
  std::vector<JsonMember> members;
  INFERSCALE_ASSIGN_OR_RETURN(std::size_t at, enter(text, '{', '}'));
  while (at != std::string_view::npos) {
    if (at >= text.size() || text[at] != '"') {
      return bad_json("expected a name in quotes", at);
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::size_t key_end, string_end(text, at));
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    const std::size_t colon = skip_space(text, key_end);
    if (colon >= text.size() || text[colon] != ':') {
      return bad_json("expected ':'", colon);
    }
    const std::size_t value = skip_space(text, colon + 1);
    INFERSCALE_ASSIGN_OR_RETURN(const std::size_t end, json_value_end(text, value));
    members.push_back({key, text.substr(value, end - value)});
    INFERSCALE_ASSIGN_OR_RETURN(at, after_element(text, end, '}'));
  }
  return members;
}

Result<nlohmann::ordered_json> parse_json_item(std::string_view text) {
  text = trim_json(text);
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return invalid_argument(fmt::format("not valid UTF-8 at byte {} of the item", bad));
  }
  // Checked first, because it bounds the nesting that the parser has to follow.
  INFERSCALE_ASSIGN_OR_RETURN(const std::size_t end, json_value_end(text, 0));
  if (end != text.size()) {
    return bad_json("something follows the value", end);
  }
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return bad_json("the item cannot be read", error.byte);
  } catch (const nlohmann::json::exception&) {
    return bad_json("a number is out of range", 0);
  }
}

}  // namespace inferscale
