// Self-tests of an installation: each check says what it saw, none stops the others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "memory/service.h"

namespace inferscale {
namespace {

DoctorCheck failed(const char* name, const Status& status) {
  return {name, false, status.to_string()};
}

DoctorCheck check_disk(const MemoryOptions& options) {
  std::error_code error;
  const auto space = std::filesystem::space(options.directory, error);
  if (error) {
    return {"disk", false, fmt::format("{}: {}", options.directory.string(), error.message())};
  }
  const bool enough =
      space.available >= std::min<std::uint64_t>(options.disk_budget_bytes, 1ULL << 30);
  return {"disk", enough,
          fmt::format(
              "{}: {} MiB free{}", options.directory.string(), space.available >> 20,
              enough ? "" : ", less than the records' budget: free some or lower --disk-budget")};
}

DoctorCheck check_catalog(Catalog& catalog) {
  const auto counts = catalog.counts_all();
  if (!counts.ok()) {
    return failed("catalog", counts.status());
  }
  return {"catalog", true, fmt::format("{} facts in {} scopes", counts->facts, counts->scopes)};
}

void check_engine(const Result<EngineParts*>& parts, std::vector<DoctorCheck>& checks) {
  if (!parts.ok()) {
    checks.push_back(failed("model", parts.status()));
    return;
  }
  const EngineInfo& info = (*parts)->engine->info();
  checks.push_back(
      {"model", true,
       fmt::format("{} ({}), {} layers, fingerprint {}, {} tokens of context, {}{}",
                   info.model.name, info.model.architecture, info.model.shape.n_layers,
                   info.model.fingerprint.to_hex().substr(0, 12), info.context_tokens, info.library,
                   info.model.key_bias.empty() ? "" : ", records without key bias")});
  checks.push_back(
      {"state_layout_and_rope", info.injection,
       info.injection ? "the engine's cache layout and the rotation of its keys are as expected"
                      : "injection is off, answers come from text: " + info.injection_off_reason});
}

// Rotates and un-rotates with this model's table at the first, a middle and the last position.
DoctorCheck check_rope(const EngineParts& parts) {
  const EngineInfo& info = parts.engine->info();
  const auto table = RopeTable::build(info.model.rope, info.context_tokens);
  if (!table.ok()) {
    return failed("rope_round_trip", table.status());
  }
  double worst = 0;
  const RopeTable& rope = **table;
  for (const std::uint32_t position : {1U, info.context_tokens / 2, info.context_tokens - 1}) {
    for (std::uint32_t pair = 0; pair < rope.pairs(); ++pair) {
      const float c = rope.cos_row(position)[pair];
      const float s = rope.sin_row(position)[pair];
      const float x = 0.75F * c - 0.5F * s;
      const float y = 0.75F * s + 0.5F * c;
      const double back_x =
          static_cast<double>(x * c + y * s) * static_cast<double>(rope.inverse_norm());
      const double back_y =
          static_cast<double>(y * c - x * s) * static_cast<double>(rope.inverse_norm());
      worst = std::max({worst, std::abs(back_x - 0.75), std::abs(back_y - 0.5)});
    }
  }
  return {"rope_round_trip", worst < 1e-5,
          fmt::format("largest error {:.1e} over {} positions", worst, info.context_tokens)};
}

DoctorCheck check_embedder(const Result<Embedder*>& embedder) {
  if (!embedder.ok()) {
    return failed("embedder", embedder.status());
  }
  if (*embedder == nullptr) {
    return {"embedder", true, "none: facts are found by keywords alone"};
  }
  const std::string probe = "a short sentence";
  const auto vectors = (*embedder)->embed(std::span(&probe, 1));
  if (!vectors.front().ok()) {
    return failed("embedder", vectors.front().status());
  }
  double norm = 0;
  for (const float value : vectors.front()->values) {
    norm += static_cast<double>(value) * static_cast<double>(value);
  }
  return {"embedder", std::abs(norm - 1) < 1e-3,
          fmt::format("{} dimensions, norm {:.4f}", (*embedder)->dim(), std::sqrt(norm))};
}

DoctorCheck check_store(const KvStore& store) {
  std::string detail;
  bool ok = true;
  for (const TierStats& tier : store.stats().tiers) {
    detail += fmt::format("{}{}: {} records, {} of {} MiB", detail.empty() ? "" : "; ", tier.name,
                          tier.records, tier.bytes >> 20, tier.budget_bytes >> 20);
    ok = ok && tier.bytes <= tier.budget_bytes;
    if (tier.corrupt > 0) {
      ok = false;
      detail += fmt::format(", {} dropped as corrupt", tier.corrupt);
    }
  }
  return {"records", ok, detail};
}

}  // namespace

std::vector<DoctorCheck> Service::doctor() {
  std::vector<DoctorCheck> checks;
  checks.push_back({"data_directory", true,
                    core_->options().directory.string() + ": open, no other process has it"});
  checks.push_back(check_disk(core_->options()));
  checks.push_back(check_catalog(core_->catalog()));
  const Result<EngineParts*> parts = core_->engine();
  check_engine(parts, checks);
  if (parts.ok()) {
    checks.push_back(check_rope(**parts));
  }
  checks.push_back(check_embedder(core_->embedder()));
  checks.push_back(check_store(core_->store()));
  return checks;
}

}  // namespace inferscale
