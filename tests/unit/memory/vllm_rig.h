#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/fake_vllm.h"
#include "unit/memory/service_rig.h"

namespace inferscale {

/// A service over a fake vLLM server, found through the control file in the data directory.
/// Reopened as a new process would; `open_embedded` opens the same directory over the engine inside
/// the process.
class VllmRig {
  testing::TempDirectory directory_;

 public:
  VllmRig() {
    options.directory = directory_.path() / "data";
    options.encode_context = "window:2";
    options.top_j = 0;
    open_embedded();  // makes the secret
    service.reset();
    server = std::make_unique<FakeVllm>(*read_file(options.directory / "secret", 4096));
    std::filesystem::create_directory(options.directory / "vllm");
    write_control_file();
    open();
  }

  void write_control_file() {
    std::ofstream file(options.directory / "vllm" / "control.json");
    file << R"({"url":")" << server->control_url() << R"(","pid":1,"fingerprint":""})";
  }

  void open() {
    options.engine = "vllm=" + server->url();
    auto dependencies = service_dependencies(options);
    ASSERT_TRUE(dependencies.ok()) << dependencies.status().to_string();
    open_with(*dependencies);
  }

  void open_embedded() {
    options.engine.clear();
    ServiceDependencies dependencies;
    dependencies.open_engine = [](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
      return std::unique_ptr<Engine>(std::make_unique<FakeEngine>());
    };
    open_with(dependencies);
  }

  AddReply add(const Scope& scope, const std::vector<std::string>& texts) {
    std::vector<FactInput> facts;
    for (const std::string& text : texts) {
      facts.push_back({text, "{}", "2025-03-01T10:00:00Z", {}});
    }
    auto reply = service->add(scope, {}, facts, true, {});
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : AddReply();
  }

  Result<AskReply> try_ask(const Scope& scope, bool inject = true) {
    AskRequest request;
    request.scope = scope;
    request.question = kQuestion;
    request.k = 10;
    request.inject = inject;
    return service->ask(request);
  }

  AskReply ask(const Scope& scope, bool inject = true) {
    auto reply = try_ask(scope, inject);
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? *reply : AskReply();
  }

  DeleteReceipt remove(const DeleteRequest& request, bool wait = true) {
    auto receipt = service->remove(request, wait, {});
    EXPECT_TRUE(receipt.ok()) << receipt.status().to_string();
    return receipt.ok() ? *receipt : DeleteReceipt();
  }

  /// The answer that the tokens of the last request deserve.
  std::string expected_answer() const {
    return FakeEngine::answer_to(server->calls().back().prompt);
  }

  static constexpr const char* kQuestion = "where does Ana live";
  MemoryOptions options;
  std::unique_ptr<FakeVllm> server;  // outlives the service
  std::unique_ptr<MemoryService> service;

 private:
  void open_with(ServiceDependencies& dependencies) {
    service.reset();
    dependencies.open_embedder = [](const MemoryOptions&) -> Result<std::unique_ptr<Embedder>> {
      return std::unique_ptr<Embedder>(std::make_unique<FakeEmbedder>());
    };
    auto opened = open_memory_service(options, dependencies);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    service = std::move(opened).value();
  }
};

}  // namespace inferscale
