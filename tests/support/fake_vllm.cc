#include "support/fake_vllm.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace inferscale {
namespace {

constexpr std::size_t kBlock = 16;
constexpr std::string_view kControlNames[] = {"<s>", "<|im_start|>", "<|im_end|>"};

/// As byte-level BPE spells a token.
std::string token_name(TokenId token) {
  if (token >= FakeTokenizer::kBegin) {
    return std::string(kControlNames[token - FakeTokenizer::kBegin]);
  }
  const auto byte = static_cast<std::uint32_t>(token);
  const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
  std::uint32_t code = byte;
  if (!prints) {
    code = 0x100 + (byte <= 0x20 ? byte : (byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x43));
  }
  if (code < 0x80) {
    return std::string(1, static_cast<char>(code));
  }
  return {static_cast<char>(0xC0 | code >> 6U), static_cast<char>(0x80 | (code & 0x3FU))};
}

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string error_body(const std::string& code, const std::string& message) {
  return dump({{"error", {{"code", code}, {"message", message}}}});
}

}  // namespace

struct FakeVllm::Run {
  FakeVllmCall call;
  std::string salt;
  nlohmann::json trace;
  bool believed = false;
  bool streams = false;
  std::uint32_t local_hit = 0;
  std::optional<LoadFailure> failure;
  bool breaks = false;
};

FakeVllm::FakeVllm(std::vector<std::byte> secret)
    : secret_(std::move(secret)), index_(std::move(SchedulerIndex::create(1)).value()) {
  server_ = std::make_unique<TestHttpServer>(
      [this](const Request& request, Responder& responder) { serve(request, responder); });
  start_control();
}

FakeVllm::~FakeVllm() {
  silent_ = false;
  server_->stop();
  control_->stop();
}

void FakeVllm::start_control() {
  control_ = std::make_unique<TestHttpServer>(
      [this](const Request& request, Responder& responder) { serve_control(request, responder); });
}

FakeVllm::Json FakeVllm::tokenize(const Json& body) const {
  std::vector<TokenId> tokens;
  if (body.contains("messages")) {
    std::vector<ChatMessage> messages;
    for (const Json& message : body["messages"]) {
      messages.push_back({message["role"], message["content"]});
    }
    const auto text = chat_.render(messages, body.value("add_generation_prompt", true));
    tokens = tokenizer_.encode(*text, true).value();
  } else {
    tokens = tokenizer_.encode(body["prompt"].get<std::string>(), true).value();
    if (body.value("add_special_tokens", true)) {
      tokens.insert(tokens.begin(), FakeTokenizer::kBegin);
    }
  }
  Json reply = {{"count", tokens.size()}, {"tokens", tokens}, {"max_model_len", 8193}};
  if (body.value("return_token_strs", false)) {
    reply["token_strs"] = Json::array();
    for (const TokenId token : tokens) {
      reply["token_strs"].push_back(token_name(token));
    }
  }
  return reply;
}

std::string FakeVllm::decode(const Json& tokens) const {
  std::string text;
  for (const Json& token : tokens) {
    const auto id = token.get<TokenId>();
    text += id >= FakeTokenizer::kBegin ? token_name(id) : tokenizer_.token_bytes(id);
  }
  return text;
}

void FakeVllm::serve(const Request& request, Responder& responder) {
  while (silent_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Json body = Json::parse(request.body, nullptr, false);
  if (request.target == "/v1/models") {
    responder.reply(200, dump({{"data", {{{"id", "fake"}, {"max_model_len", 8193}}}}}));
  } else if (request.target == "/tokenize") {
    responder.reply(200, dump(tokenize(body)));
  } else if (request.target == "/detokenize") {
    responder.reply(200, dump({{"prompt", decode(body["tokens"])}}));
  } else if (request.target == "/v1/completions") {
    complete(body, responder);
  } else {
    responder.reply(404, error_body("kNotFound", "no such route"));
  }
}

std::uint32_t FakeVllm::cached(const std::string& salt, const std::vector<TokenId>& prompt) {
  std::size_t best = 0;
  for (const std::vector<TokenId>& known : prefixes_[salt]) {
    const auto ends = std::mismatch(prompt.begin(), prompt.end(), known.begin(), known.end());
    best = std::max(best, static_cast<std::size_t>(ends.first - prompt.begin()) / kBlock * kBlock);
  }
  prefixes_[salt].push_back(prompt);
  return static_cast<std::uint32_t>(std::min(best, prompt.size() - 1) / kBlock * kBlock);
}

/// Reads a request, and believes it or not. REQUIRES: mutex_ is held.
void FakeVllm::admit(Run& run, const Json& body) {
  run.call.prompt = body["prompt"].get<std::vector<TokenId>>();
  run.call.max_tokens = body["max_tokens"];
  run.call.likely = body.value("logprobs", 0U);
  run.salt = body.value("cache_salt", "");
  if (broken_ > 0) {
    --broken_;
    run.breaks = true;
  }
  const Json asked = body.value("kv_transfer_params", Json::object()).value("inferscale", Json());
  const auto params =
      parse_params(asked.is_string() ? asked.get<std::string>() : dump(asked), secret_);
  if (!params.ok()) {
    run.call.refused = params.status().to_string();
    return;
  }
  run.call.params = *params;
  run.trace = {{"request", params->request},
               {"purpose", request_purpose_name(params->purpose)},
               {"prompt_tokens", run.call.prompt.size()},
               {"local_hit", 0},
               {"injected", 0},
               {"segments", Json::array()},
               {"fallbacks", Json::array()},
               {"captured", Json::array()},
               {"failed", nullptr},
               {"finished", true}};
  if (run.salt != cache_salt(secret_, *params, model_.info().model.fingerprint)) {
    run.call.refused = "salt";
    return;
  }
  const auto owner = std::pair(params->scope.tenant, params->scope.user);
  const auto known = epochs_.try_emplace(owner, params->epoch).first;
  if (params->epoch < known->second) {
    run.call.refused = "stale_epoch";
  } else if (params->epoch > known->second) {
    index_->erase_owner(owner.first, owner.second);
    known->second = params->epoch;
    run.call.refused = "epoch_ahead";
  }
  index_->learn_scope(params->scope);
  run.believed = run.call.refused.empty();
  run.local_hit = cached(run.salt, run.call.prompt);
  run.trace["local_hit"] = run.local_hit;
  if (!run.believed) {
    run.trace["fallbacks"].push_back({{"reason", run.call.refused}, {"count", 1}});
  }
}

void FakeVllm::inject(Run& run) {
  const RequestParams& params = run.call.params;
  if (!run.believed || params.purpose == RequestPurpose::kText || params.inject.empty()) {
    return;
  }
  const Match match = index_->match(run.call.prompt, params);
  for (const MatchFallback& fallback : match.fallbacks) {
    run.trace["fallbacks"].push_back(
        {{"reason", match_miss_name(fallback.reason)}, {"count", fallback.count}});
  }
  if (match.begin > run.local_hit) {
    run.trace["fallbacks"].push_back({{"reason", "header_cold"}, {"count", match.segments.size()}});
    return;
  }
  const auto end = std::min<std::size_t>(match.end, run.call.prompt.size() - 1);
  run.call.injected = end > run.local_hit ? static_cast<std::uint32_t>(end - run.local_hit) : 0;
  run.trace["injected"] = run.call.injected;
  for (const MatchedSegment& segment : match.segments) {
    run.trace["segments"].push_back(
        {{"key", segment.key.value.to_hex()}, {"begin", segment.begin}, {"end", segment.end}});
  }
  if (run.call.injected > 0 && !load_failures_.empty()) {
    run.failure = load_failures_.front();
    load_failures_.erase(load_failures_.begin());
    run.trace["failed"] = "record_evicted";
    run.trace["injected"] = 0;
    run.trace["segments"] = Json::array();
  }
}

void FakeVllm::capture(Run& run) {
  for (const CaptureParams& wanted : run.call.params.capture) {
    RecordMeta meta;
    meta.model_fingerprint = model_.info().model.fingerprint;
    meta.shape = model_.info().model.shape;
    meta.context_id = wanted.context_id;
    const Scope owner = owner_scope(run.call.params.scope, wanted.owner);
    meta.scope = scope_hash(owner);
    const auto tokens = std::span(run.call.prompt).subspan(wanted.begin, wanted.end - wanted.begin);
    const bool right = make_record_key(secret_, meta, tokens) == wanted.key;
    if (!right || !run.believed || !captures_ || !injection_) {
      run.trace["fallbacks"].push_back({{"reason", "capture_refused"}, {"count", 1}});
      continue;
    }
    index_->learn_scope(owner);
    index_->expect(wanted.key, meta.scope);
    (void)index_->add(
        0, {wanted.key, meta.scope, wanted.context_kind, {tokens.begin(), tokens.end()}});
    run.trace["captured"].push_back(wanted.key.value.to_hex());
  }
}

void FakeVllm::complete(const Json& body, Responder& responder) {
  Run run;
  {
    const std::lock_guard lock(mutex_);
    if (failing_ > 0) {
      --failing_;
      responder.reply(failing_status_, error_body("kUnavailable", "made to fail"));
      return;
    }
    admit(run, body);
    if (injection_) {
      inject(run);
    }
    if (!run.failure) {
      capture(run);
    }
    calls_.push_back(run.call);
    traces_[run.call.params.request] = run.trace;
  }
  if (run.failure == LoadFailure::kStatus500) {
    responder.reply(500, error_body("InternalServerError", "Internal server error"));
    return;
  }
  if (run.call.likely > max_likely_) {
    responder.reply(400, error_body("BadRequestError", "Requested logprobs are above the maximum"));
    return;
  }
  responder.begin("text/event-stream");
  stream(run, responder);
}

FakeVllm::Json FakeVllm::likeliest(const FakeVllmCall& call) {
  RunRequest request;
  request.branches.push_back(
      {call.prompt, {}, {static_cast<std::uint32_t>(call.prompt.size() - 1)}});
  const auto result = model_.run(std::move(request));
  Json entries = Json::object();
  if (result.ok()) {
    std::multimap<float, std::size_t, std::greater<>> best;
    const std::vector<float>& log_probs = result->branches[0].scores[0].log_probs;
    for (std::size_t token = 0; token < log_probs.size(); ++token) {
      best.emplace(log_probs[token], token);
    }
    for (const auto& [log_prob, token] : best) {
      if (entries.size() < call.likely) {
        entries["token_id:" + std::to_string(token)] = log_prob;
      }
    }
  }
  return entries;
}

/// Token by token. Bytes above 0x7F add no text until their character is whole.
void FakeVllm::stream(Run& run, Responder& responder) {
  const auto event = [&](const Json& json) {
    return responder.piece("data: " + dump(json) + "\n\n");
  };
  const auto fail = [&] {
    event(
        {{"error", {{"message", "load failed"}, {"type", "InternalServerError"}, {"code", 500}}}});
    responder.piece("data: [DONE]\n\n");
    responder.end();
  };
  if (run.failure == LoadFailure::kErrorEvent) {
    return fail();
  }
  const std::string answer = FakeEngine::answer_to(run.call.prompt);
  std::size_t sent = 0;
  for (const char byte : answer) {
    if (sent == 3 && run.breaks) {
      return;
    }
    if (sent == 3 && run.failure == LoadFailure::kErrorAfterTokens) {
      return fail();
    }
    ++sent;
    const bool full = sent == run.call.max_tokens;
    Json choice = {{"index", 0},
                   {"text", std::string(1, byte)},
                   {"token_ids", {static_cast<unsigned char>(byte)}},
                   {"finish_reason", full ? Json("length") : Json()},
                   {"stop_reason", nullptr}};
    if (sent == 1 && run.call.likely > 0) {
      choice["logprobs"] = {{"top_logprobs", {likeliest(run.call)}}};
    }
    if (!event({{"choices", {choice}}})) {
      return;
    }
    if (full) {
      responder.piece("data: [DONE]\n\n");
      return responder.end();
    }
  }
  event({{"choices",
          {{{"index", 0},
            {"text", ""},
            {"token_ids", {FakeTokenizer::kMessageEnd}},
            {"finish_reason", "stop"},
            {"stop_reason", nullptr}}}}});
  event({{"choices", Json::array()}, {"usage", {{"prompt_tokens", run.call.prompt.size()}}}});
  responder.piece("data: [DONE]\n\n");
  responder.end();
}

FakeVllm::Json FakeVllm::info() const {
  const EngineInfo& info = model_.info();
  const KvShape& shape = info.model.shape;
  return {{"protocol", 1},
          {"vllm", "0.0.fake"},
          {"model", "fake"},
          {"fingerprint", info.model.fingerprint.to_hex()},
          {"shape",
           {{"n_layers", shape.n_layers},
            {"n_kv_heads", shape.n_kv_heads},
            {"head_dim_k", shape.head_dim_k},
            {"head_dim_v", shape.head_dim_v}}},
          {"rope", {{"rotary_dim", info.model.rope.rotary_dim}}},
          {"store_codec", store_codec_},
          {"cache_dtype", "float32"},
          {"ranks", 1},
          {"injection", injection_},
          {"reason", injection_ ? "" : "switched off in the fake server"},
          {"max_model_len", max_model_len_.load()},
          {"vocab_size", vocab_size_.load()},
          {"block_size", kBlock},
          {"adapter", "fake"}};
}

FakeVllm::Json FakeVllm::erase(const Json& body, int* status) {
  ++erases_;
  const std::string tenant = body.value("tenant", "");
  const std::string user = body.value("user", "");
  std::vector<RecordKey> keys;
  for (const Json& key : body.value("keys", Json::array())) {
    keys.push_back(RecordKey{Hash128::from_hex(key.get<std::string>()).value()});
  }
  std::uint64_t epoch = 0;
  std::size_t erased = 0;
  if (!user.empty()) {
    epoch = body.value("epoch", std::uint64_t{0});
    const auto known = epochs_.find({tenant, user});
    const std::uint64_t before = known == epochs_.end() ? 0 : known->second;
    if (epoch == 0 || (known != epochs_.end() && epoch <= before)) {
      *status = 409;
      return {{"error", {{"code", "kConflict"}, {"message", "epoch"}}}};
    }
    epochs_[{tenant, user}] = epoch;
    if (body.value("all", false) || (known != epochs_.end() && epoch > before + 1)) {
      erased += index_->erase_owner(tenant, user).size();
    }
  }
  erased += index_->erase(keys);
  return {{"epoch", epoch},
          {"records", erased},
          {"erased", {{"gpu", 0}, {"host", erased}, {"disk", erased}, {"leased", 0}}},
          {"ranks", 1}};
}

void FakeVllm::serve_control(const Request& request, Responder& responder) {
  if (request.authorization != "Bearer " + control_token(secret_)) {
    responder.reply(401, error_body("kUnauthenticated", "no token, or a wrong one"));
    return;
  }
  const std::lock_guard lock(mutex_);
  const Json body = Json::parse(request.body, nullptr, false);
  const std::string trace = "/v1/trace?request=";
  int status = 200;
  Json reply;
  if (request.target == "/v1/info") {
    reply = info();
  } else if (request.target == "/v1/ready") {
    const auto owner = std::pair(body.value("tenant", ""), body.value("user", ""));
    reply = {{"epoch", epochs_.contains(owner) ? epochs_[owner] : 0}, {"ready", Json::array()}};
    for (const Json& key : body["keys"]) {
      reply["ready"].push_back(
          index_->contains(RecordKey{Hash128::from_hex(key.get<std::string>()).value()}));
    }
  } else if (request.target == "/v1/erase") {
    reply = erase(body, &status);
  } else if (request.target.starts_with(trace)) {
    const auto found = traces_.find(request.target.substr(trace.size()));
    status = found == traces_.end() ? 404 : 200;
    reply =
        found == traces_.end() ? Json::parse(error_body("kNotFound", "no trace")) : found->second;
  } else if (request.target == "/v1/stats") {
    reply = {{"counters", Json::object()}, {"records", index_->size()}, {"ranks", Json::array()}};
  } else {
    status = 404;
    reply = Json::parse(error_body("kNotFound", "no such route"));
  }
  responder.reply(status, dump(reply));
}

std::vector<FakeVllmCall> FakeVllm::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FakeVllm::clear_calls() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

std::uint64_t FakeVllm::epoch(const std::string& user) const {
  const std::lock_guard lock(mutex_);
  const auto found = epochs_.find({"default", user});
  return found == epochs_.end() ? 0 : found->second;
}

std::uint32_t FakeVllm::erase_calls() const {
  const std::lock_guard lock(mutex_);
  return erases_;
}

void FakeVllm::drop_records() {
  const std::lock_guard lock(mutex_);
  index_ = std::move(SchedulerIndex::create(1)).value();
  prefixes_.clear();
}

void FakeVllm::reset_prefix_cache() {
  const std::lock_guard lock(mutex_);
  prefixes_.clear();
}

void FakeVllm::fail_next_load(LoadFailure how) {
  const std::lock_guard lock(mutex_);
  load_failures_.push_back(how);
}

void FakeVllm::break_next_stream() {
  const std::lock_guard lock(mutex_);
  ++broken_;
}

void FakeVllm::fail_next_requests(std::uint32_t count, int status) {
  const std::lock_guard lock(mutex_);
  failing_ = count;
  failing_status_ = status;
}

void FakeVllm::set_injection(bool on) {
  const std::lock_guard lock(mutex_);
  injection_ = on;
}

}  // namespace inferscale
