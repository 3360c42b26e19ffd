#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/http_client.h"
#include "prompt/tokenizer.h"

namespace inferscale::vllm {

/// A vLLM server's own tokenizer, asked over HTTP (`/tokenize`, `/detokenize`); answers are kept,
/// within bounds. Thread-safe. Errors: kUnavailable besides those of Tokenizer.
class ServerTokenizer final : public Tokenizer {
 public:
  /// Borrows the client. Errors: those of the server.
  [[nodiscard]] static Result<std::unique_ptr<ServerTokenizer>> open(HttpClient& client,
                                                                     std::string url,
                                                                     std::string model);

  /// The server reads names of control tokens in any text. Without `parse_special` a text that
  /// holds what looks like one is cut inside of it, so that it stays text.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    bool parse_special) const override;
  /// As learned from the answer in which the token came, else as the server says; bytes of a
  /// sequence that the server cannot say alone are U+FFFD.
  [[nodiscard]] std::string token_bytes(TokenId token) const override;
  [[nodiscard]] std::vector<TokenId> prompt_prefix() const override { return prefix_; }
  /// Known once an answer has ended with it.
  [[nodiscard]] bool is_end_of_generation(TokenId token) const override;

  /// The text that `tokens` added to an answer, together.
  void learn(std::span<const TokenId> tokens, const std::string& text) const;
  void learn_end(TokenId token) const;

 private:
  struct Encoded {
    std::vector<TokenId> tokens;
    std::vector<std::string> names;
  };
  ServerTokenizer(HttpClient& client, std::string url, std::string model)
      : client_(client), url_(std::move(url)), model_(std::move(model)) {}
  [[nodiscard]] Result<Encoded> ask(const std::string& text, bool add_special) const;
  [[nodiscard]] Result<std::vector<TokenId>> encode_plain(const std::string& text, int depth) const;
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> tokens) const;
  [[nodiscard]] Status find_prefix();
  [[nodiscard]] std::string ask_bytes(TokenId token) const;

  HttpClient& client_;
  const std::string url_;
  const std::string model_;
  std::vector<TokenId> prefix_;
  TokenId anchor_ = 0;  ///< a token of plain text, and what it says
  std::string anchor_text_;

  mutable std::mutex mutex_;                                                  // guards what follows
  mutable std::map<std::string, std::vector<TokenId>, std::less<>> encoded_;  // of plain texts
  mutable std::map<TokenId, std::string> bytes_;
  mutable std::set<TokenId> ends_;
};

/// The bytes that a token's name stands for where it is spelt in the alphabet of byte-level BPE
/// ("Ġhello"); nothing where it is not.
[[nodiscard]] std::optional<std::string> byte_level_bytes(std::string_view name);

/// A vLLM server's chat template, applied by the server. Thread-safe.
class ServerChatFormat final : public ChatFormat {
 public:
  ServerChatFormat(HttpClient& client, std::string url, std::string model)
      : client_(client), url_(std::move(url)), model_(std::move(model)) {}
  [[nodiscard]] Result<std::string> render(const std::vector<ChatMessage>& messages,
                                           bool open_reply) const override;

 private:
  HttpClient& client_;
  const std::string url_;
  const std::string model_;
};

}  // namespace inferscale::vllm
