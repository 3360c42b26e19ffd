#include "engine/vllm/server_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/utf8.h"
#include "engine/vllm/json_call.h"

namespace inferscale::vllm {
namespace {

constexpr std::size_t kMaxKeptTexts = 16'384;
constexpr std::size_t kMaxKeptTextBytes = 4096;
constexpr std::size_t kMaxKeptTokens = 1U << 18;
constexpr std::size_t kMinControlName = 3;
constexpr int kMaxCuts = 64;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

JsonCall call_to(const std::string& url, const std::string& model, const char* path) {
  JsonCall call;
  call.url = url + path;
  call.body = {{"model", model}};
  call.max_reply_bytes = 64U << 20;
  return call;
}

Result<std::vector<TokenId>> token_list(const Json& list) {
  if (!list.is_array()) {
    return unavailable("the vLLM server's reply holds no list of tokens");
  }
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const Json& token : list) {
    if (!token.is_number_unsigned() ||
        token.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<TokenId>::max()}) {
      return unavailable("the vLLM server's reply holds a token id that is none");
    }
    tokens.push_back(token.get<TokenId>());
  }
  return tokens;
}

/// Whether a token is spelt like the name of a control token and the text says just that there.
/// Ordinary tokens may be spelt so too: to cut them costs nothing but a token.
bool looks_like_control(std::string_view name, std::string_view text) {
  if (name.size() < kMinControlName || text.find(name) == std::string_view::npos) {
    return false;
  }
  const char first = name.front();
  const char last = name.back();
  return (first == '<' && last == '>') || (first == '[' && last == ']');
}

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view name) {
  std::string bytes;
  while (!name.empty()) {
    const auto lead = static_cast<unsigned char>(name[0]);
    std::uint32_t code = lead;
    std::size_t size = 1;
    if (lead >= 0x80) {  // the alphabet ends at U+0143
      if (name.size() < 2 || lead < 0xC2 || lead > 0xC5) {
        return std::nullopt;
      }
      code = (lead & 0x1FU) << 6U | (static_cast<unsigned char>(name[1]) & 0x3FU);
      size = 2;
    }
    const bool itself = (code >= '!' && code <= '~') || (code >= 0xA1 && code <= 0xAC) ||
                        (code >= 0xAE && code <= 0xFF);
    if (!itself && (code < 0x100 || code > 0x143)) {
      return std::nullopt;
    }
    std::uint32_t byte = code;
    if (!itself) {  // the bytes that do not print are numbered from 0x100 on
      const std::uint32_t n = code - 0x100;
      byte = n <= 0x20 ? n : (n <= 0x41 ? n - 0x21 + 0x7F : (n == 0x42 ? 0xA0 : 0xAD));
    }
    bytes += static_cast<char>(byte);
    name.remove_prefix(size);
  }
  return bytes;
}

Result<std::unique_ptr<ServerTokenizer>> ServerTokenizer::open(HttpClient& client, std::string url,
                                                               std::string model) {
  std::unique_ptr<ServerTokenizer> tokenizer(
      new ServerTokenizer(client, std::move(url), std::move(model)));
  INFERSCALE_RETURN_IF_ERROR(tokenizer->find_prefix());
  return tokenizer;
}

Status ServerTokenizer::find_prefix() {
  INFERSCALE_ASSIGN_OR_RETURN(const Encoded plain, ask("a", false));
  INFERSCALE_ASSIGN_OR_RETURN(const Encoded full, ask("a", true));
  if (plain.tokens.empty()) {
    return unsupported("the vLLM server's tokenizer makes no token of a letter");
  }
  const auto at =
      std::search(full.tokens.begin(), full.tokens.end(), plain.tokens.begin(), plain.tokens.end());
  prefix_.assign(full.tokens.begin(), at == full.tokens.end() ? full.tokens.begin() : at);
  anchor_ = plain.tokens.back();
  INFERSCALE_ASSIGN_OR_RETURN(anchor_text_, decode(std::span(&anchor_, 1)));
  return Status();
}

Result<ServerTokenizer::Encoded> ServerTokenizer::ask(const std::string& text,
                                                      bool add_special) const {
  JsonCall call = call_to(url_, model_, "/tokenize");
  call.body["prompt"] = text;
  call.body["add_special_tokens"] = add_special;
  call.body["return_token_strs"] = true;
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call_json(client_, call));
  Encoded encoded;
  INFERSCALE_ASSIGN_OR_RETURN(encoded.tokens, token_list(part_field(reply, "tokens")));
  const Json& names = part_field(reply, "token_strs");
  if (!names.is_array() || names.size() != encoded.tokens.size()) {
    return unavailable(call.url + ": the reply does not name each token");
  }
  for (const Json& name : names) {
    encoded.names.push_back(name.is_string() ? name.get<std::string>() : std::string());
  }
  return encoded;
}

Result<std::vector<TokenId>> ServerTokenizer::encode(std::string_view text,
                                                     bool parse_special) const {
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    return invalid_argument(fmt::format("text: byte {} is not UTF-8", invalid));
  }
  if (text.empty()) {
    return std::vector<TokenId>();
  }
  if (parse_special) {
    INFERSCALE_ASSIGN_OR_RETURN(Encoded encoded, ask(std::string(text), false));
    return std::move(encoded.tokens);
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = encoded_.find(text); found != encoded_.end()) {
      return found->second;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, encode_plain(std::string(text), 0));
  if (text.size() <= kMaxKeptTextBytes) {
    const std::lock_guard lock(mutex_);
    if (encoded_.size() >= kMaxKeptTexts) {
      encoded_.clear();
    }
    encoded_.emplace(text, tokens);
  }
  return tokens;
}

Result<std::vector<TokenId>> ServerTokenizer::encode_plain(const std::string& text,
                                                           int depth) const {
  INFERSCALE_ASSIGN_OR_RETURN(Encoded encoded, ask(text, false));
  const auto control =
      std::find_if(encoded.names.begin(), encoded.names.end(),
                   [&](const std::string& name) { return looks_like_control(name, text); });
  if (control == encoded.names.end()) {
    return std::move(encoded.tokens);
  }
  if (depth >= kMaxCuts) {
    return invalid_argument("text: it holds too many names of control tokens");
  }
  std::vector<TokenId> tokens;
  for (std::size_t from = 0; from < text.size();) {  // cut behind the first character of each name
    const std::size_t at = text.find(*control, from == 0 ? 0 : from);
    const std::size_t end = at == std::string::npos ? text.size() : at + 1;
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> piece,
                                encode_plain(text.substr(from, end - from), depth + 1));
    tokens.insert(tokens.end(), piece.begin(), piece.end());
    from = end;
  }
  return tokens;
}

Result<std::string> ServerTokenizer::decode(std::span<const TokenId> tokens) const {
  JsonCall call = call_to(url_, model_, "/detokenize");
  call.body["tokens"] = std::vector<TokenId>(tokens.begin(), tokens.end());
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call_json(client_, call));
  return text_field(reply, "prompt");
}

std::string ServerTokenizer::token_bytes(TokenId token) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = bytes_.find(token); found != bytes_.end()) {
      return found->second;
    }
    if (ends_.contains(token)) {
      return "";
    }
  }
  return token < 0 ? std::string() : ask_bytes(token);
}

// Behind another token, since a tokenizer may drop a space at the start of a text.
std::string ServerTokenizer::ask_bytes(TokenId token) const {
  const TokenId pair[] = {anchor_, token};
  const Result<std::string> text = decode(pair);
  if (!text.ok() || !text->starts_with(anchor_text_)) {
    return "";
  }
  std::string bytes = text->substr(anchor_text_.size());
  learn(std::span(&token, 1), bytes);
  return bytes;
}

bool ServerTokenizer::is_end_of_generation(TokenId token) const {
  const std::lock_guard lock(mutex_);
  return ends_.contains(token);
}

void ServerTokenizer::learn_end(TokenId token) const {
  const std::lock_guard lock(mutex_);
  if (ends_.size() < kMaxKeptTokens) {
    ends_.insert(token);
  }
}

// Several tokens of one character are told apart by tokenising it: their names spell their bytes.
void ServerTokenizer::learn(std::span<const TokenId> tokens, const std::string& text) const {
  std::vector<std::string> parts;
  if (tokens.size() == 1) {
    parts.push_back(text);
  } else {
    {
      const std::lock_guard lock(mutex_);
      if (std::all_of(tokens.begin(), tokens.end(),
                      [&](TokenId token) { return bytes_.contains(token); })) {
        return;
      }
    }
    const Result<Encoded> again = text.empty() ? Encoded() : ask(text, false);
    if (!again.ok() ||
        !std::equal(again->tokens.begin(), again->tokens.end(), tokens.begin(), tokens.end())) {
      return;
    }
    std::string whole;
    for (const std::string& name : again->names) {
      parts.push_back(byte_level_bytes(name).value_or(""));
      whole += parts.back();
    }
    if (whole != text) {
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < parts.size() && bytes_.size() < kMaxKeptTokens; ++i) {
    const bool certain = parts[i].find(kReplacement) == std::string::npos;
    if (certain) {
      bytes_.emplace(tokens[i], parts[i]);
    }
  }
}

Result<std::string> ServerChatFormat::render(const std::vector<ChatMessage>& messages,
                                             bool open_reply) const {
  JsonCall call = call_to(url_, model_, "/tokenize");
  Json& list = call.body["messages"] = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  call.body["add_generation_prompt"] = open_reply;
  const Result<Json> reply = call_json(client_, call);
  if (!reply.ok()) {
    return reply.status().code() == StatusCode::kInvalidArgument
               ? unsupported("the vLLM server cannot apply a chat template: " +
                             reply.status().message())
               : reply.status();
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                              token_list(part_field(*reply, "tokens")));
  JsonCall decode = call_to(url_, model_, "/detokenize");
  decode.body["tokens"] = tokens;
  INFERSCALE_ASSIGN_OR_RETURN(const Json text, call_json(client_, decode));
  return text_field(text, "prompt");
}

}  // namespace inferscale::vllm
