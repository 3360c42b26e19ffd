#include "engine/vllm/completion.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>

#include "engine/vllm/json_call.h"

namespace inferscale::vllm {
namespace {

constexpr std::size_t kMaxLineBytes = 1U << 20;
constexpr std::size_t kMaxStreamBytes = std::size_t{1} << 30;
constexpr std::chrono::minutes kMaxRequest{60};
// A long prompt on a slow machine says nothing until it is prefilled.
constexpr std::chrono::minutes kMaxSilence{10};

Json to_body(const CompletionRequest& request) {
  const Sampling& sampling = request.sampling;
  Json body = {{"model", request.model},
               {"prompt", request.prompt},
               {"max_tokens", sampling.max_tokens},
               {"temperature", sampling.temperature},
               {"top_p", sampling.top_p},
               {"top_k", sampling.top_k},
               // Said, since the model's own generation_config may say otherwise.
               {"min_p", 0.0},
               {"repetition_penalty", 1.0},
               {"presence_penalty", 0.0},
               {"frequency_penalty", 0.0},
               {"stream", true},
               {"return_token_ids", true}};
  if (sampling.temperature > 0) {
    body["seed"] = static_cast<std::int64_t>(
        sampling.seed & std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  }
  if (request.likely > 0) {
    body["logprobs"] = request.likely;
    body["return_tokens_as_token_ids"] = true;
  }
  if (!request.params.empty()) {
    body["kv_transfer_params"] = {{"inferscale", request.params}};
  }
  if (!request.cache_salt.empty()) {
    body["cache_salt"] = request.cache_salt;
  }
  return body;
}

std::optional<TokenId> token_named(std::string_view name) {
  constexpr std::string_view kPrefix = "token_id:";
  TokenId token = 0;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const char* const begin = name.data() + kPrefix.size();
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, token);
  return error == std::errc() && stop == end ? std::optional(token) : std::nullopt;
}

/// The likeliest tokens in a choice's `logprobs`; of another form, none.
std::vector<LikelyToken> likely_tokens(const Json& log_probs) {
  std::vector<LikelyToken> likely;
  const Json& places = part_field(log_probs, "top_logprobs");
  if (!places.is_array() || places.empty() || !places[0].is_object()) {
    return likely;
  }
  for (const auto& [name, value] : places[0].items()) {
    const std::optional<TokenId> token = token_named(name);
    if (token && value.is_number()) {
      likely.push_back({*token, value.get<float>()});
    }
  }
  return likely;
}

class Reader {
 public:
  explicit Reader(const std::function<bool(const CompletionPiece&)>& on_piece)
      : on_piece_(on_piece) {}

  bool take(std::string_view bytes) {
    return events_.push(bytes, [this](std::string_view data) { return take_event(data); });
  }

  Result<CompletionEnd> end(const std::string& url) {
    if (events_.overlong()) {
      status_ = unavailable("an event of the stream is longer than 1 MiB");
    }
    if (status_.ok() && !enough_ && end_.finish_reason.empty() && !end_.server_error) {
      status_ = unavailable("the stream ended before the answer did");
    }
    return status_.ok() ? Result<CompletionEnd>(std::move(end_))
                        : Result<CompletionEnd>(status_.with_context(url));
  }

 private:
  bool take_event(std::string_view data) {
    if (data == "[DONE]") {
      return true;
    }
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) {
      status_ = unavailable("an event of the stream is no JSON object");
      return false;
    }
    if (const Json& error = part_field(event, "error"); error.is_object()) {
      end_.server_error = true;
      end_.message = text_field(error, "message");
      return false;
    }
    const Json& choices = part_field(event, "choices");
    if (!choices.is_array() || choices.empty() || !choices[0].is_object()) {
      return true;  // usage
    }
    return take_choice(choices[0]);
  }

  bool take_choice(const Json& choice) {
    CompletionPiece piece;
    piece.text = text_field(choice, "text");
    piece.finish_reason = text_field(choice, "finish_reason");
    if (piece.finish_reason == "error" || piece.finish_reason == "abort") {
      end_.server_error = true;
      end_.message = "the engine ended the request: " + piece.finish_reason;
      return false;
    }
    const Json& tokens = part_field(choice, "token_ids");
    if (!tokens.is_array()) {
      status_ = unsupported("the vLLM server names no token ids (return_token_ids)");
      return false;
    }
    for (const Json& token : tokens) {
      if (!token.is_number_unsigned() ||
          token.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<TokenId>::max()}) {
        status_ = unavailable("an event of the stream holds a token id that is none");
        return false;
      }
      piece.tokens.push_back(token.get<TokenId>());
    }
    piece.likely = likely_tokens(part_field(choice, "logprobs"));
    end_.finish_reason = piece.finish_reason;
    enough_ = !on_piece_(piece);
    return !enough_;
  }

  const std::function<bool(const CompletionPiece&)>& on_piece_;
  EventReader events_;
  CompletionEnd end_;
  Status status_;
  bool enough_ = false;
};

}  // namespace

bool EventReader::push(std::string_view piece,
                       const std::function<bool(std::string_view)>& on_data) {
  constexpr std::string_view kData = "data:";
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    line_ += piece.substr(0, end);
    if (line_.size() > kMaxLineBytes) {
      overlong_ = true;
      return false;
    }
    if (end == std::string_view::npos) {
      return true;
    }
    piece.remove_prefix(end + 1);
    std::string_view line = line_;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    bool more = true;
    if (line.starts_with(kData)) {
      line.remove_prefix(kData.size());
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
      more = on_data(line);
    }
    line_.clear();
    if (!more) {
      return false;
    }
  }
  return true;
}

Result<CompletionEnd> complete(HttpClient& client, const CompletionRequest& request,
                               const std::function<bool(const CompletionPiece&)>& on_piece,
                               const std::function<bool()>& go_on) {
  JsonCall call;
  call.url = request.url + "/v1/completions";
  call.body = to_body(request);
  call.timeout = kMaxRequest;
  call.max_reply_bytes = kMaxStreamBytes;
  HttpRequest http = to_request(call);
  http.idle_timeout = kMaxSilence;
  Reader reader(on_piece);
  const HttpSink sink{[&reader](std::string_view bytes) { return reader.take(bytes); }, go_on};
  INFERSCALE_ASSIGN_OR_RETURN(const HttpReply reply, client.stream(http, sink));
  if (reply.status == 500) {
    return CompletionEnd{"", true, reply_error(call.url, reply).message()};
  }
  if (reply.status < 200 || reply.status > 299) {
    return reply_error(call.url, reply);
  }
  return reader.end(call.url);
}

}  // namespace inferscale::vllm
