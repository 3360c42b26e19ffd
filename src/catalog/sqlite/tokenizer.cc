#include "catalog/sqlite/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/utf8.h"

namespace inferscale::sqlite {
namespace {

constexpr char kOwnerEnd = '\x1f';  // facts hold no control characters

// Left out of queries because that finds more (docs/catalog.md has the figures) and costs less.
constexpr const char* kStopWords =
    "a about an and are as at be but by can could did do does for from had has have he her him his "
    "how i if in into is it its me my no not of on or our she should such that the their then "
    "there "
    "these they this to us was we what when where which who whom why will with would you your";

using TokenCallback = int (*)(void*, int, const char*, int, int, int);

struct Range {
  char32_t first;
  char32_t last;
  bool ideographs;
};
// Scripts written without spaces between words (Hangul: between a word and its particles).
constexpr Range kUnsegmented[] = {
    {0x0E01, 0x0E4E, false},  {0x0E81, 0x0ECD, false}, {0x1000, 0x109F, false},
    {0x1780, 0x17D3, false},  {0x3005, 0x3007, true},  {0x3041, 0x3096, false},
    {0x309D, 0x309F, false},  {0x30A1, 0x30FA, false}, {0x30FC, 0x30FF, false},
    {0x31F0, 0x31FF, false},  {0x3400, 0x4DBF, true},  {0x4E00, 0x9FFF, true},
    {0xAC00, 0xD7A3, false},  {0xF900, 0xFAFF, true},  {0xFF66, 0xFF9D, false},
    {0x20000, 0x323AF, true},
};

const Range* find_range(char32_t c) {
  if (c < kUnsegmented[0].first) {
    return nullptr;
  }
  const auto* range = std::upper_bound(std::begin(kUnsegmented), std::end(kUnsegmented), c,
                                       [](char32_t v, const Range& r) { return v < r.first; });
  --range;  // the first range starts at or before c
  return c <= range->last ? range : nullptr;
}

struct CodePoint {
  char32_t value;
  std::size_t length;
};

/// REQUIRES: valid UTF-8.
CodePoint decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1FU) << 6 | (byte(1) & 0x3FU), 2};
  if (lead < 0xF0) return {(lead & 0xFU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU), 3};
  return {(lead & 7U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU),
          4};
}

/// Passes tokens on with the owner in front of them and no longer than kMaxTermBytes.
struct Emitter {
  std::string term;  // starts with the owner prefix, if there is one
  std::size_t prefix_size = 0;
  void* context = nullptr;
  TokenCallback callback = nullptr;
  std::size_t base = 0;  // of the span being tokenised, in the whole text

  int emit(std::string_view token, std::size_t start, std::size_t end) {
    term.resize(prefix_size);
    term += utf8_prefix(token, kMaxTermBytes);  // fits what tokenize() reserved
    return callback(context, 0, term.data(), static_cast<int>(term.size()), static_cast<int>(start),
                    static_cast<int>(end));
  }

  static int from_inner(void* self, int /*flags*/, const char* token, int size, int start,
                        int end) {
    auto& emitter = *static_cast<Emitter*>(self);
    return emitter.emit({token, static_cast<std::size_t>(size)},
                        emitter.base + static_cast<std::size_t>(start),
                        emitter.base + static_cast<std::size_t>(end));
  }
};

/// Emits pairs of characters of a run, its ideographs, and a run of one character as it is.
int emit_pairs(std::string_view text, std::size_t begin, std::size_t end, Emitter& emitter) {
  std::size_t previous = end;
  for (std::size_t at = begin; at < end;) {
    const CodePoint point = decode(text, at);
    const std::size_t next = at + point.length;
    if (find_range(point.value)->ideographs || (at == begin && next == end)) {
      if (const int rc = emitter.emit(text.substr(at, next - at), at, next); rc != SQLITE_OK) {
        return rc;
      }
    }
    if (previous < at) {
      const std::string_view pair = text.substr(previous, next - previous);
      if (const int rc = emitter.emit(pair, previous, next); rc != SQLITE_OK) {
        return rc;
      }
    }
    previous = at;
    at = next;
  }
  return SQLITE_OK;
}

/// Where the run of text that starts at `at` ends: all of it of unsegmented scripts, or none.
std::size_t run_end(std::string_view text, std::size_t at, bool unsegmented) {
  while (at < text.size()) {
    const CodePoint point = decode(text, at);
    if ((find_range(point.value) != nullptr) != unsegmented) {
      break;
    }
    at += point.length;
  }
  return at;
}

/// Removes "<digits>\x1f" from the front of `text` and returns it.
std::string_view take_owner(std::string_view& text) {
  std::size_t at = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    ++at;
  }
  if (at == 0 || at == text.size() || text[at] != kOwnerEnd) {
    return {};
  }
  const std::string_view owner = text.substr(0, at + 1);
  text.remove_prefix(at + 1);
  return owner;
}

Result<fts5_api*> find_api(Connection& connection) {
  fts5_api* api = nullptr;
  sqlite3_stmt* raw = nullptr;
  if (sqlite3_prepare_v2(connection.raw(), "SELECT fts5(?1)", -1, &raw, nullptr) == SQLITE_OK) {
    sqlite3_bind_pointer(raw, 1, &api, "fts5_api_ptr", nullptr);
    sqlite3_step(raw);
  }
  sqlite3_finalize(raw);
  if (api == nullptr) {
    return internal_error("this SQLite was built without FTS5, which keyword search needs");
  }
  return api;
}

}  // namespace

/// A stemming tokenizer of SQLite and the functions it is called through. Also what FTS5 holds as
/// its Fts5Tokenizer.
struct KeywordTokenizer::Instance {
  fts5_tokenizer inner_functions{};
  Fts5Tokenizer* inner = nullptr;

  Instance() = default;
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() {
    if (inner != nullptr) {
      inner_functions.xDelete(inner);
    }
  }

  static int create(fts5_api* api, std::unique_ptr<Instance>& out) {
    auto instance = std::make_unique<Instance>();
    void* inner_context = nullptr;
    int rc = api->xFindTokenizer(api, "porter", &inner_context, &instance->inner_functions);
    if (rc != SQLITE_OK) {
      return rc;
    }
    // M*: vowel signs belong to their word in Indic scripts.
    const char* arguments[] = {"unicode61", "remove_diacritics", "2", "categories", "L* N* M* Co"};
    rc = instance->inner_functions.xCreate(inner_context, arguments, std::size(arguments),
                                           &instance->inner);
    if (rc == SQLITE_OK) {
      out = std::move(instance);
    }
    return rc;
  }

  int tokenize(std::string_view owner, std::string_view text, int flags, void* context,
               TokenCallback callback) const {
    Emitter emitter;
    emitter.term.reserve(owner.size() + kMaxTermBytes);
    emitter.term = owner;
    emitter.prefix_size = emitter.term.size();
    emitter.context = context;
    emitter.callback = callback;
    std::size_t at = 0;
    while (at < text.size()) {
      const bool unsegmented = find_range(decode(text, at).value) != nullptr;
      const std::size_t end = run_end(text, at, unsegmented);
      int rc = SQLITE_OK;
      if (unsegmented) {
        rc = emit_pairs(text, at, end, emitter);
      } else {
        emitter.base = at;
        rc = inner_functions.xTokenize(inner, &emitter, flags, text.data() + at,
                                       static_cast<int>(end - at), &Emitter::from_inner);
      }
      if (rc != SQLITE_OK) {
        return rc;
      }
      at = end;
    }
    return SQLITE_OK;
  }

  // What FTS5 calls. It only ever hands over text that add and update have checked. No exception
  // may pass through its C frames: the only one there is, is that memory ran out.
  static int fts_create(void* api, const char** /*arguments*/, int /*count*/, Fts5Tokenizer** out) {
    try {
      std::unique_ptr<Instance> instance;
      const int rc = create(static_cast<fts5_api*>(api), instance);
      *out = reinterpret_cast<Fts5Tokenizer*>(instance.release());
      return rc;
    } catch (const std::bad_alloc&) {
      return SQLITE_NOMEM;
    }
  }
  static void fts_delete(Fts5Tokenizer* instance) { delete reinterpret_cast<Instance*>(instance); }
  static int fts_tokenize(Fts5Tokenizer* instance, void* context, int flags, const char* text,
                          int size, TokenCallback callback) {
    std::string_view view(text == nullptr ? "" : text, static_cast<std::size_t>(size));
    if (find_invalid_utf8(view) != std::string_view::npos) {
      return SQLITE_CORRUPT;  // not written by this program
    }
    const std::string_view owner = take_owner(view);
    try {
      return reinterpret_cast<const Instance*>(instance)->tokenize(owner, view, flags, context,
                                                                   callback);
    } catch (const std::bad_alloc&) {
      return SQLITE_NOMEM;
    }
  }
};

KeywordTokenizer::KeywordTokenizer(std::unique_ptr<Instance> instance)
    : instance_(std::move(instance)) {
  for_each_term(kStopWords, [this](std::string_view term) {
    stop_terms_.emplace(term);
    return true;
  });
}

KeywordTokenizer::~KeywordTokenizer() = default;

Result<std::unique_ptr<KeywordTokenizer>> KeywordTokenizer::attach(Connection& connection) {
  INFERSCALE_ASSIGN_OR_RETURN(fts5_api * api, find_api(connection));
  fts5_tokenizer functions{&Instance::fts_create, &Instance::fts_delete, &Instance::fts_tokenize};
  int rc = api->xCreateTokenizer(api, "inferscale", api, &functions, nullptr);
  std::unique_ptr<Instance> instance;
  if (rc == SQLITE_OK) {
    rc = Instance::create(api, instance);
  }
  if (rc != SQLITE_OK) {
    return connection.error(rc);
  }
  return std::unique_ptr<KeywordTokenizer>(new KeywordTokenizer(std::move(instance)));
}

void KeywordTokenizer::for_each_term(std::string_view text,
                                     const std::function<bool(std::string_view)>& visit) {
  const auto callback = [](void* context, int /*flags*/, const char* token, int size, int /*start*/,
                           int /*end*/) -> int {
    const auto& visitor = *static_cast<const std::function<bool(std::string_view)>*>(context);
    try {
      // Not SQLITE_DONE: unicode61 takes that for the end of its text.
      return visitor({token, static_cast<std::size_t>(size)}) ? SQLITE_OK : SQLITE_INTERRUPT;
    } catch (const std::bad_alloc&) {
      return SQLITE_NOMEM;
    }
  };
  auto* context = const_cast<std::function<bool(std::string_view)>*>(&visit);  // C interface
  while (!text.empty()) {
    const std::size_t invalid = find_invalid_utf8(text);
    const std::string_view valid = text.substr(0, invalid);
    if (instance_->tokenize({}, valid, FTS5_TOKENIZE_QUERY, context, callback) != SQLITE_OK) {
      return;  // stopped by the visitor, or out of memory: a query with fewer terms
    }
    text.remove_prefix(invalid == std::string_view::npos ? text.size() : invalid + 1);
  }
}

std::int64_t KeywordTokenizer::count_terms(std::string_view text) {
  std::int64_t count = 0;
  for_each_term(text, [&count](std::string_view) {
    ++count;
    return true;
  });
  return count;
}

bool KeywordTokenizer::is_stop_term(std::string_view term) const {
  return stop_terms_.contains(std::string(term));
}

std::string KeywordTokenizer::index_text(std::int64_t owner, std::string_view text) {
  return std::to_string(owner) + kOwnerEnd + std::string(text);
}

std::string KeywordTokenizer::index_term(std::int64_t owner, std::string_view term) {
  return std::to_string(owner) + kOwnerEnd + std::string(term);
}

}  // namespace inferscale::sqlite
