#include "engine/vllm/control_client.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "connector/request_params.h"
#include "engine/vllm/json_call.h"

namespace inferscale::vllm {
namespace {

constexpr std::size_t kKeysPerCall = 4096;
constexpr std::size_t kMaxFileBytes = 64U << 10;

/// One of the calls that may be under way.
class CallSlot {
 public:
  explicit CallSlot(std::counting_semaphore<>& slots) : slots_(slots) { slots_.acquire(); }
  ~CallSlot() { slots_.release(); }
  CallSlot(const CallSlot&) = delete;
  CallSlot& operator=(const CallSlot&) = delete;

 private:
  std::counting_semaphore<>& slots_;
};

std::uint32_t small(const Json& object, const char* name) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(number_field(object, name), std::uint32_t{1} << 30U));
}

/// By its own name or torch's.
KvCodec codec_named(const std::string& name) {
  if (name == "bfloat16") {
    return KvCodec::kBf16;
  }
  return name == "float32" ? KvCodec::kF32 : codec_from_name(name).value_or(KvCodec::kF16);
}

RopeSpec to_rope(const Json& json) {
  RopeSpec rope;
  if (!json.is_object()) {
    return rope;
  }
  rope.pairing =
      text_field(json, "pairing") == "halves" ? RopePairing::kHalves : RopePairing::kAdjacent;
  const std::string scaling = text_field(json, "scaling");
  rope.scaling = scaling == "linear"   ? RopeScaling::kLinear
                 : scaling == "llama3" ? RopeScaling::kLlama3
                 : scaling == "yarn"   ? RopeScaling::kYarn
                                       : RopeScaling::kNone;
  rope.freq_base = real_field(json, "freq_base", rope.freq_base);
  rope.rotary_dim = small(json, "rotary_dim");
  rope.scaling_factor = real_field(json, "scaling_factor", 1);
  rope.yarn_ext_factor = real_field(json, "yarn_ext_factor", 1);
  rope.yarn_attn_factor = real_field(json, "yarn_attn_factor", 1);
  rope.yarn_beta_fast = real_field(json, "yarn_beta_fast", 32);
  rope.yarn_beta_slow = real_field(json, "yarn_beta_slow", 1);
  rope.original_context = small(json, "original_context");
  const Json& factors = part_field(json, "freq_factors");
  if (factors.is_array() && factors.size() <= 4096) {
    for (const Json& factor : factors) {
      rope.freq_factors.push_back(factor.is_number() ? factor.get<float>() : 0);
    }
  }
  return rope;
}

Result<ControlInfo> to_info(const Json& json) {
  ControlInfo info;
  info.vllm_version = text_field(json, "vllm");
  info.model = text_field(json, "model");
  info.injection = flag_field(json, "injection");
  info.reason = text_field(json, "reason");
  info.max_model_len = small(json, "max_model_len");
  info.block_size = small(json, "block_size");
  info.cache_dtype = codec_named(text_field(json, "cache_dtype"));
  info.store_codec = codec_named(text_field(json, "store_codec"));
  const Json& shape = part_field(json, "shape");
  if (shape.is_object()) {
    info.spec.shape = {small(shape, "n_layers"), small(shape, "n_kv_heads"),
                       small(shape, "head_dim_k"), small(shape, "head_dim_v")};
  }
  info.spec.rope = to_rope(part_field(json, "rope"));
  info.spec.architecture = "vllm";
  info.spec.name = info.model;
  info.spec.trained_positions = info.max_model_len;
  info.spec.vocab_size = small(json, "vocab_size");
  const auto fingerprint = Hash128::from_hex(text_field(json, "fingerprint"));
  if (number_field(json, "protocol") != 1) {
    return unsupported("the connector speaks another version of the control protocol than 1");
  }
  if (info.injection && (!fingerprint.ok() || !info.spec.shape.validate().ok())) {
    return unavailable("the control channel names no fingerprint and shape of its model");
  }
  if (fingerprint.ok()) {
    info.spec.fingerprint = *fingerprint;
  }
  return info;
}

Json to_json(std::span<const RecordKey> keys) {
  Json list = Json::array();
  for (const RecordKey& key : keys) {
    list.push_back(key.value.to_hex());
  }
  return list;
}

RequestTrace to_trace(const Json& json) {
  RequestTrace trace;
  trace.local_hit = small(json, "local_hit");
  trace.injected = small(json, "injected");
  trace.failed = text_field(json, "failed");
  trace.finished = flag_field(json, "finished");
  for (const Json& span : part_field(json, "segments")) {
    const auto key =
        span.is_object() ? Hash128::from_hex(text_field(span, "key")) : invalid_argument("");
    if (key.ok()) {
      trace.segments.push_back({RecordKey{*key}, small(span, "begin"), small(span, "end")});
    }
  }
  for (const Json& fallback : part_field(json, "fallbacks")) {
    if (fallback.is_object() && number_field(fallback, "count") > 0) {
      trace.fallbacks.push_back({text_field(fallback, "reason"), small(fallback, "count")});
    }
  }
  for (const Json& hex : part_field(json, "captured")) {
    const auto key =
        hex.is_string() ? Hash128::from_hex(hex.get<std::string>()) : invalid_argument("");
    if (key.ok()) {
      trace.captured.push_back(RecordKey{*key});
    }
  }
  return trace;
}

void add_erased(const Json& reply, EraseCounts& counts) {
  const Json& erased = part_field(reply, "erased");
  if (erased.is_object()) {
    counts.gpu += number_field(erased, "gpu");
    counts.host += number_field(erased, "host");
    counts.disk += number_field(erased, "disk");
    counts.leased += number_field(erased, "leased");
  }
}

}  // namespace

ControlClient::ControlClient(VllmAddress address, const std::filesystem::path& file,
                             std::span<const std::byte> secret)
    : address_(std::move(address)),
      file_(address_.control_file.empty() ? file : address_.control_file),
      token_(control_token(secret)),
      client_(make_http_client({.ca_file = {}, .kept_connections = kCallsAtOnce})),
      url_(address_.control) {}

Result<std::string> ControlClient::place(bool again) {
  const std::lock_guard lock(mutex_);
  if (!url_.empty() && !again) {
    return url_;
  }
  if (!address_.control.empty()) {
    return address_.control;
  }
  const auto bytes = read_file(file_, kMaxFileBytes);
  if (!bytes.ok()) {
    return unavailable(fmt::format(
        "the control channel of the vLLM server is not known: {}; start the server with the "
        "InferScale connector and its data_dir in this data directory, or name the channel with "
        "control=URL or control-file=PATH",
        bytes.status().message()));
  }
  const auto* text = reinterpret_cast<const char*>(bytes->data());
  const Json json = Json::parse(text, text + bytes->size(), nullptr, false);
  const std::string url = json.is_object() ? text_field(json, "url") : std::string();
  if (url.empty()) {
    return unavailable(file_.string() + ": names no control channel");
  }
  url_ = url;
  return url;
}

Result<Json> ControlClient::call(const char* method, const std::string& path, const Json& body) {
  JsonCall call;
  call.method = method;
  call.body = body;
  call.token = token_;
  call.timeout = std::chrono::seconds(60);
  const CallSlot slot(slots_);
  std::string before;
  for (const bool again : {false, true}) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::string url, place(again));
    if (url == before) {
      break;  // it was written by the engine that does not answer
    }
    before = url;
    call.url = url + path;
    const Result<HttpReply> sent = client_->send(to_request(call));
    if (!sent.ok()) {
      if (sent.status().code() != StatusCode::kUnavailable || again) {
        return sent.status().with_context("control channel of the vLLM server");
      }
      continue;
    }
    if (sent->status == 401 || sent->status == 403) {
      return permission_denied(
          "the vLLM server's connector has another secret: give it the file `secret` of this data "
          "directory as secret_file, and start it again");
    }
    return reply_object(call.url, *sent);
  }
  return unavailable(fmt::format(
      "control channel of the vLLM server: {} does not answer; is the server running?", before));
}

Result<ControlInfo> ControlClient::info() {
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call("GET", "/v1/info", Json()));
  return to_info(reply);
}

Result<std::vector<bool>> ControlClient::ready(std::span<const RecordKey> keys) {
  std::vector<bool> all;
  all.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kKeysPerCall) {
    const auto some = keys.subspan(begin, std::min(kKeysPerCall, keys.size() - begin));
    const Json body = {{"tenant", ""}, {"user", ""}, {"keys", to_json(some)}};
    INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call("POST", "/v1/ready", body));
    const Json& ready = part_field(reply, "ready");
    if (!ready.is_array() || ready.size() != some.size()) {
      return unavailable("control channel: /v1/ready answered for other keys than were asked for");
    }
    for (const Json& one : ready) {
      all.push_back(one.is_boolean() && one.get<bool>());
    }
  }
  return all;
}

Result<EraseCounts> ControlClient::erase(const OwnerEpoch& owner, std::span<const RecordKey> keys) {
  // One call for an owner, whose epoch can be raised once only: above so many keys, everything.
  constexpr std::size_t kMostKeys = 100'000;
  Json body = {{"tenant", owner.tenant}, {"user", owner.user}};
  if (owner.user.empty()) {
    body = {{"tenant", ""}, {"user", ""}};
  } else {
    body["epoch"] = owner.epoch;
  }
  if (keys.size() > kMostKeys && !owner.user.empty()) {
    body["all"] = true;
  } else {
    body["keys"] = to_json(keys);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call("POST", "/v1/erase", body));
  EraseCounts counts;
  add_erased(reply, counts);
  return counts;
}

Result<RequestTrace> ControlClient::trace(const std::string& request) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply,
                              call("GET", "/v1/trace?request=" + request, Json()));
  return to_trace(reply);
}

Result<std::vector<TierStats>> ControlClient::tiers() {
  INFERSCALE_ASSIGN_OR_RETURN(const Json reply, call("GET", "/v1/stats", Json()));
  TierStats engine;
  engine.name = "engine";
  engine.records = number_field(reply, "records");
  return std::vector<TierStats>{engine};
}

}  // namespace inferscale::vllm
