#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "crash/oracle.h"
#include "engine/fake_engine.h"
#include "memory/service.h"

namespace inferscale::testing {

struct CrashServiceOptions {
  std::filesystem::path directory;
  std::filesystem::path model;  ///< for libllama; empty: the fake engine
  FileSystem* files = nullptr;  ///< of the stores; null: the operating system's
  std::uint64_t disk_budget_bytes = 64ULL << 20;
  bool background = false;  ///< a thread encodes
};

/// A memory service together with what checks look into.
struct CrashService {
  std::unique_ptr<MemoryService> service;
  ServiceCore* core = nullptr;   // of `service`
  FakeEngine* engine = nullptr;  // of `core`, once it was needed; null with libllama

  /// Every fact with its history, and the turns that the markers of `oracle` may have left.
  [[nodiscard]] Result<OracleState> state(const Oracle& oracle) const;
};

[[nodiscard]] Result<std::unique_ptr<CrashService>> open_crash_service(
    const CrashServiceOptions& options);

}  // namespace inferscale::testing
