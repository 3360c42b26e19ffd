// Latency of retrieval over one scope of 100,000 facts:
//   retrieval_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
// Embedding the query is not part of it (docs/retrieval.md gives its time).
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>

#include "catalog/sqlite/sqlite_catalog.h"
#include "retrieval/retriever.h"
#include "retrieval/vector_index.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDim = 384;
constexpr std::size_t kFacts = 100'000;
const char* const kEmbedder = "random";

/// Directions and texts that mean nothing; words are drawn as often as words are (Zipf).
class Generator {
 public:
  std::vector<float> vector() {
    std::vector<float> values(kDim);
    double square = 0;
    for (float& value : values) {
      value = normal_(random_);
      square += static_cast<double>(value) * value;
    }
    for (float& value : values) {
      value = static_cast<float>(value / std::sqrt(square));
    }
    return values;
  }
  std::string text(std::size_t words) {
    std::string text;
    for (std::size_t i = 0; i < words; ++i) {
      const double u = std::uniform_real_distribution<double>(0, 1)(random_);
      text += fmt::format("{}w{}", i == 0 ? "" : " ", static_cast<int>(std::pow(20'000.0, u)));
    }
    return text;
  }

 private:
  std::mt19937 random_{42};
  std::normal_distribution<float> normal_;
};

class RandomEmbedder final : public Embedder {
 public:
  const std::string& id() const override { return id_; }
  std::size_t dim() const override { return kDim; }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override {
    std::vector<Result<TextVectors>> results;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      results.emplace_back(TextVectors{id_, kDim, generator_.vector()});
    }
    return results;
  }

 private:
  std::string id_ = kEmbedder;
  Generator generator_;
};

/// A catalog of kFacts facts, made once and removed at the end.
class Store {
 public:
  static Store& instance() {
    static Store store;
    return store;
  }
  Retriever& retriever() { return *retriever_; }
  Catalog& catalog() { return *catalog_; }

 private:
  Store() : directory_(fs::temp_directory_path() / fmt::format("retrieval-bench-{}", ::getpid())) {
    auto opened = open_sqlite_catalog({directory_, 0});
    if (!opened.ok()) {
      fmt::print(stderr, "{}\n", opened.status().to_string());
      std::exit(1);
    }
    catalog_ = std::move(opened).value();
    Generator generator;
    for (std::size_t done = 0; done < kFacts; done += 10'000) {
      std::vector<NewFact> facts(10'000);
      for (NewFact& fact : facts) {
        fact.text = generator.text(14);
        fact.vectors = {kEmbedder, kDim, generator.vector()};
      }
      if (const auto added = catalog_->add_facts(facts); !added.ok()) {
        fmt::print(stderr, "{}\n", added.status().to_string());
        std::exit(1);
      }
    }
    retriever_ = std::make_unique<Retriever>(*catalog_, &embedder_);
  }
  ~Store() {
    retriever_.reset();
    catalog_.reset();
    fs::remove_all(directory_);
  }

  fs::path directory_;
  RandomEmbedder embedder_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Retriever> retriever_;
};

void search_mode(benchmark::State& state, RetrievalMode mode) {
  Retriever& retriever = Store::instance().retriever();
  Generator queries;
  double embed_ms = 0;
  for (auto _ : state) {
    RetrievalRequest request{Scope(), queries.text(8), static_cast<std::size_t>(state.range(0)),
                             Filter(), mode};
    const auto result = retriever.search(request);
    if (!result.ok()) {
      state.SkipWithError(result.status().message().c_str());
      break;
    }
    embed_ms += result->embed_ms;
    benchmark::DoNotOptimize(result->facts.size());
  }
  state.counters["embed_ms"] = embed_ms / static_cast<double>(state.iterations());
}

void BM_SearchFused(benchmark::State& state) { search_mode(state, RetrievalMode::kFused); }
void BM_SearchVector(benchmark::State& state) { search_mode(state, RetrievalMode::kVector); }
void BM_SearchKeyword(benchmark::State& state) { search_mode(state, RetrievalMode::kKeyword); }
BENCHMARK(BM_SearchFused)->Arg(10)->Arg(50)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SearchVector)->Arg(10)->Arg(50)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SearchKeyword)->Arg(10)->Arg(50)->Unit(benchmark::kMillisecond);

/// The first search of a scope reads its vectors.
void BM_LoadScope(benchmark::State& state) {
  Catalog& catalog = Store::instance().catalog();
  const std::vector<float> query = Generator().vector();
  for (auto _ : state) {
    VectorIndex index(kEmbedder, kDim, std::size_t{1} << 30,
                      [&](const Scope& scope) { return catalog.vectors(scope, kEmbedder); });
    benchmark::DoNotOptimize(index.search(Scope(), query, 10, nullptr).ok());
  }
}
BENCHMARK(BM_LoadScope)->Unit(benchmark::kMillisecond);

/// The index alone; argument: every how many facts one passes the filter.
void BM_IndexFiltered(benchmark::State& state) {
  Generator generator;
  VectorRows rows;
  rows.dim = kDim;
  VectorIndex::IdSet only;
  for (std::size_t i = 0; i < kFacts; ++i) {
    rows.fact_ids.push_back(fmt::format("fact-{:08}", i));
    const auto vector = generator.vector();
    rows.values.insert(rows.values.end(), vector.begin(), vector.end());
    if (i % static_cast<std::size_t>(state.range(0)) == 0) {
      only.insert(rows.fact_ids.back());
    }
  }
  VectorIndex index(kEmbedder, kDim, std::size_t{1} << 30,
                    [&](const Scope&) { return Result<VectorRows>(rows); });
  const std::vector<float> query = generator.vector();
  benchmark::DoNotOptimize(index.search(Scope(), query, 10, nullptr).ok());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        index.search(Scope(), query, 200, state.range(0) == 1 ? nullptr : &only).ok());
  }
}
BENCHMARK(BM_IndexFiltered)->Arg(1)->Arg(2)->Arg(100)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace inferscale

BENCHMARK_MAIN();
