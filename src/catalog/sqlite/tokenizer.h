#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "catalog/sqlite/connection.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

/// Terms are cut to this many bytes in the index and in queries alike.
inline constexpr std::size_t kMaxTermBytes = 64;

/// The FTS5 tokenizer "inferscale": SQLite's unicode61 (Latin diacritics removed) with English
/// stemming where scripts separate words, and for scripts that do not (Chinese, Japanese, Korean,
/// Thai, Lao, Khmer, Burmese) overlapping pairs of characters, and single ideographs. One thread at
/// a time, like its connection.
class KeywordTokenizer {
 public:
  /// Registers the tokenizer with the connection. Errors: kInternal (SQLite built without FTS5).
  [[nodiscard]] static Result<std::unique_ptr<KeywordTokenizer>> attach(Connection& connection);
  ~KeywordTokenizer();
  KeywordTokenizer(const KeywordTokenizer&) = delete;
  KeywordTokenizer& operator=(const KeywordTokenizer&) = delete;

  /// Calls `visit` for every term of `text`, in order, until it returns false. Any bytes are
  /// accepted: malformed UTF-8 separates words.
  void for_each_term(std::string_view text, const std::function<bool(std::string_view)>& visit);
  [[nodiscard]] std::int64_t count_terms(std::string_view text);
  /// Whether a term is an English function word: hardly any information, and in most facts.
  [[nodiscard]] bool is_stop_term(std::string_view term) const;

  /// What is handed to the index for a fact's text, and how its terms are spelt there.
  [[nodiscard]] static std::string index_text(std::int64_t owner, std::string_view text);
  [[nodiscard]] static std::string index_term(std::int64_t owner, std::string_view term);

 private:
  struct Instance;
  explicit KeywordTokenizer(std::unique_ptr<Instance> instance);
  std::unique_ptr<Instance> instance_;
  std::unordered_set<std::string> stop_terms_;
};

}  // namespace inferscale::sqlite
