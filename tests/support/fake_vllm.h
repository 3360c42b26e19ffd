#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "connector/request_params.h"
#include "connector/scheduler_index.h"
#include "engine/fake_engine.h"
#include "engine/fake_tokenizer.h"
#include "support/test_http_server.h"

namespace inferscale {

/// One request to /v1/completions, as it came and what was made of it.
struct FakeVllmCall {
  RequestParams params;
  std::vector<TokenId> prompt;
  std::uint32_t max_tokens = 0;
  std::uint32_t likely = 0;  ///< tokens whose log-probabilities are wanted
  std::uint32_t injected = 0;
  std::string refused;  ///< why its parameters were not believed
};

/// A vLLM server with the connector in it, as far as a client sees: what it holds of records are
/// names and tokens. It believes only what is signed, salted and named rightly, keeps epochs,
/// matches with the real index, and has a prefix cache of blocks of 16 tokens by salt. It answers
/// as FakeEngine does, so that both give the same answer to the same tokens. Thread-safe.
class FakeVllm {
 public:
  explicit FakeVllm(std::vector<std::byte> secret);
  ~FakeVllm();

  [[nodiscard]] std::string url() const { return server_->url(); }
  [[nodiscard]] std::string control_url() const { return control_->url(); }
  [[nodiscard]] int connections() const { return server_->connections(); }
  void close_connections() { server_->close_connections(); }
  void stop_control() { control_->stop(); }
  void start_control();
  void stop() { server_->stop(); }

  [[nodiscard]] std::vector<FakeVllmCall> calls() const;
  void clear_calls();
  [[nodiscard]] std::uint64_t epoch(const std::string& user) const;
  [[nodiscard]] std::size_t records() const { return index_->size(); }
  [[nodiscard]] bool has(const RecordKey& key) const { return index_->contains(key); }
  void drop_records();
  void reset_prefix_cache();
  [[nodiscard]] std::uint32_t erase_calls() const;

  // Faults, each for the next requests of its kind.
  enum class LoadFailure { kStatus500, kErrorEvent, kErrorAfterTokens };
  void fail_next_load(LoadFailure how);
  void break_next_stream();
  void fail_next_requests(std::uint32_t count, int status);
  void set_injection(bool on);
  void set_silent(bool silent) { silent_ = silent; }  ///< answers only when the client goes
  void set_captures(bool on) { captures_ = on; }      ///< off: makes none, and says so
  void set_max_likely(std::uint32_t tokens) { max_likely_ = tokens; }  ///< of --max-logprobs
  void set_vocab_size(std::uint32_t tokens) { vocab_size_ = tokens; }
  void set_max_model_len(std::uint32_t tokens) { max_model_len_ = tokens; }
  void set_store_codec(std::string name) {
    store_codec_ = std::move(name);
  }  ///< before a client asks

 private:
  using Json = nlohmann::json;
  using Request = TestHttpServer::Request;
  using Responder = TestHttpServer::Responder;
  struct Run;

  void serve(const Request& request, Responder& responder);
  void serve_control(const Request& request, Responder& responder);
  void complete(const Json& body, Responder& responder);
  [[nodiscard]] Json tokenize(const Json& body) const;
  [[nodiscard]] std::string decode(const Json& tokens) const;
  [[nodiscard]] Json erase(const Json& body, int* status);
  void admit(Run& run, const Json& body);
  void inject(Run& run);
  void capture(Run& run);
  [[nodiscard]] Json likeliest(const FakeVllmCall& call);
  void stream(Run& run, Responder& responder);
  [[nodiscard]] std::uint32_t cached(const std::string& salt, const std::vector<TokenId>& prompt);
  [[nodiscard]] Json info() const;

  const std::vector<std::byte> secret_;
  const FakeTokenizer tokenizer_;
  const FakeChatFormat chat_;
  FakeEngine model_;
  std::unique_ptr<SchedulerIndex> index_;
  std::atomic<bool> silent_{false};
  std::atomic<bool> captures_{true};
  std::atomic<std::uint32_t> max_model_len_{8193};
  std::atomic<std::uint32_t> max_likely_{4096};
  std::atomic<std::uint32_t> vocab_size_{FakeTokenizer::kVocabSize};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<FakeVllmCall> calls_;
  std::map<std::pair<std::string, std::string>, std::uint64_t> epochs_;
  std::map<std::string, Json> traces_;
  std::map<std::string, std::vector<std::vector<TokenId>>> prefixes_;  // by salt
  std::vector<LoadFailure> load_failures_;
  int broken_ = 0;
  std::uint32_t failing_ = 0;
  int failing_status_ = 500;
  bool injection_ = true;
  std::string store_codec_ = "f32";
  std::uint32_t erases_ = 0;
  std::unique_ptr<TestHttpServer> server_;
  std::unique_ptr<TestHttpServer> control_;
};

}  // namespace inferscale
