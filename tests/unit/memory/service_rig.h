#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/fake_engine.h"
#include "inferscale/memory.h"
#include "memory/service_core.h"
#include "unit/kv/temp_directory.h"
#include "unit/retrieval/fake_embedder.h"

namespace inferscale {

/// A service over the fake engine in a directory of its own; reopened as a new process would.
class ServiceRig {
  testing::TempDirectory directory_;  // first: outlives the service

 public:
  ServiceRig() {
    options.directory = directory_.path() / "data";
    options.encode_context = "window:2";
    options.top_j = 0;
  }

  void open() {
    service.reset();
    ServiceDependencies dependencies;
    dependencies.open_engine = [this](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
      auto made = std::make_unique<FakeEngine>(engine_options);
      engine = made.get();
      return std::unique_ptr<Engine>(std::move(made));
    };
    dependencies.open_embedder = [](const MemoryOptions&) -> Result<std::unique_ptr<Embedder>> {
      return std::unique_ptr<Embedder>(std::make_unique<FakeEmbedder>());
    };
    dependencies.files = files;
    dependencies.clock = [this] { return now_us() + clock_ahead_us; };
    auto opened = open_memory_service(options, dependencies);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    service = std::move(opened).value();
  }

  AddReply add(const Scope& scope, const std::vector<std::string>& texts, bool wait = true) {
    std::vector<FactInput> facts;
    for (const std::string& text : texts) {
      facts.push_back({text, "{}", "2025-03-01T10:00:00Z", {}});
    }
    auto reply = service->add(scope, {}, facts, wait, {});
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : AddReply();
  }

  AskReply ask(const Scope& scope, const std::string& question, std::uint32_t k = 10,
               bool inject = true) {
    AskRequest request;
    request.scope = scope;
    request.question = question;
    request.k = k;
    request.inject = inject;
    auto reply = service->ask(request);
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : AskReply();
  }

  /// The answer that the tokens of the last run deserve, however they came into the cache.
  std::string expected_answer() const {
    const FakeCall call = engine->calls().back();
    std::vector<TokenId> tokens;
    for (const auto& segment : call.segments) {
      tokens.insert(tokens.end(), segment.begin(), segment.end());
    }
    tokens.insert(tokens.end(), call.branches.front().begin(), call.branches.front().end());
    return FakeEngine::answer_to(tokens);
  }

  DeleteReceipt remove(const DeleteRequest& request, bool wait = true) {
    auto receipt = service->remove(request, wait, {});
    EXPECT_TRUE(receipt.ok()) << receipt.status().to_string();
    return receipt.ok() ? *receipt : DeleteReceipt();
  }

  FactView update(const Scope& scope, const std::string& id, const std::string& text,
                  bool wait = true) {
    UpdateRequest request;
    request.scope = scope;
    request.id = id;
    request.text = text;
    auto fact = service->update(request, wait, {});
    EXPECT_TRUE(fact.ok()) << fact.status().to_string();
    return fact.ok() ? *fact : FactView();
  }

  EncodeQueueStats queue() {
    auto stats = service->stats();
    EXPECT_TRUE(stats.ok()) << stats.status().to_string();
    return stats.ok() ? stats->encode : EncodeQueueStats();
  }

  std::atomic<TimestampUs> clock_ahead_us{0};  ///< of the service's clock
  MemoryOptions options;
  FakeEngineOptions engine_options;
  FileSystem* files = nullptr;   // of the records; null: the operating system's
  FakeEngine* engine = nullptr;  // of the open service, once it was needed
  std::unique_ptr<MemoryService> service;
};

inline std::uint32_t fallback_count(const AskReply& reply, const std::string& reason) {
  std::uint32_t count = 0;
  for (const FallbackCount& fallback : reply.fallbacks) {
    count += fallback.reason == reason ? fallback.count : 0;
  }
  return count;
}

inline std::size_t injected_facts(const AskReply& reply) {
  std::size_t count = 0;
  for (const UsedFact& fact : reply.facts) {
    count += fact.injected ? 1 : 0;
  }
  return count;
}

inline DeleteRequest delete_ids(const Scope& scope, std::vector<std::string> ids) {
  DeleteRequest request;
  request.scope = scope;
  request.ids = std::move(ids);
  return request;
}

/// The bytes among the tokens of a run's prompt, as text.
inline std::string prompt_text(const FakeCall& call) {
  std::string text;
  const auto append = [&text](const std::vector<std::vector<TokenId>>& parts) {
    for (const auto& tokens : parts) {
      for (const TokenId token : tokens) {
        text += token < 256 ? static_cast<char>(token) : ' ';
      }
    }
  };
  append(call.segments);
  append(call.branches);
  return text;
}

inline Scope user(const std::string& name) {
  Scope scope;
  scope.user = name;
  return scope;
}

}  // namespace inferscale
