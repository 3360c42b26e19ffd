#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/move_rig.h"
#include "kernels/cuda/vector_scan.h"
#include "kernels/f16.h"

namespace inferscale::cuda {
namespace {

std::unique_ptr<CudaVectorScan> scan_of(const CudaVectorScan::Options& options) {
  auto scan = CudaVectorScan::create(options);
  EXPECT_TRUE(scan.ok()) << scan.status().to_string();
  return scan.ok() ? std::move(*scan) : nullptr;
}

std::vector<float> random_vectors(std::size_t count, std::size_t dim, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> vectors(count * dim);
  for (float& value : vectors) {
    value = kernels::float_from_f16(kernels::f16_from_float(normal(random)));
  }
  return vectors;
}

// Small whole numbers: every sum is exact in any order, and many scores tie.
std::vector<float> whole_vectors(std::size_t count, std::size_t dim, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> vectors(count * dim);
  for (float& value : vectors) {
    value = static_cast<float>(static_cast<int>(random() % 5) - 2);
  }
  return vectors;
}

std::vector<std::vector<ScanHit>> search(CudaVectorScan& scan, const std::vector<float>& queries,
                                         const std::vector<ScanScope>& scopes, std::size_t k) {
  const Status started = scan.start(queries, scopes, k, nullptr);
  EXPECT_TRUE(started.ok()) << started.to_string();
  auto hits = scan.finish();
  EXPECT_TRUE(hits.ok()) << hits.status().to_string();
  return hits.ok() ? *hits : std::vector<std::vector<ScanHit>>(scopes.size());
}

::testing::AssertionResult same_hits(const std::vector<ScanHit>& want,
                                     const std::vector<ScanHit>& got) {
  if (want.size() != got.size()) {
    return ::testing::AssertionFailure() << got.size() << " hits, not " << want.size();
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i].index != got[i].index || want[i].score != got[i].score) {
      return ::testing::AssertionFailure()
             << "hit " << i << " is " << got[i].index << " (" << got[i].score << "), not "
             << want[i].index << " (" << want[i].score << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(CudaVectorScan, ExactWithTiesLikeTheCpu) {
  INFERSCALE_NEEDS_DEVICE();
  for (const KvCodec dtype : {KvCodec::kF32, KvCodec::kF16}) {
    for (const std::size_t dim : {1U, 7U, 100U, 384U, 1536U}) {
      const std::uint64_t count = 3001;
      const auto vectors = whole_vectors(count, dim, 3);
      const auto scan = scan_of({dim, dtype, count, 8, 1024});
      ASSERT_NE(scan, nullptr);
      ASSERT_TRUE(scan->write(0, vectors).ok());
      const std::vector<ScanScope> scopes = {{0, 3001}, {17, 0},  {5, 1},      {2000, 1001},
                                             {0, 256},  {1, 257}, {700, 2048}, {3001, 0}};
      const auto queries = whole_vectors(scopes.size(), dim, 4);
      for (const std::size_t k : {1U, 10U, 300U, 1024U}) {
        const auto hits = search(*scan, queries, scopes, k);
        for (std::size_t q = 0; q < scopes.size(); ++q) {
          const auto want =
              vector_scan(std::span(vectors).subspan(scopes[q].first * dim, scopes[q].count * dim),
                          dim, std::span(queries).subspan(q * dim, dim), k);
          EXPECT_TRUE(same_hits(want, hits[q])) << "dim " << dim << " k " << k << " query " << q;
        }
      }
    }
  }
}

// So many vectors that blocks are large and several passes select, with as many hits as there may
// be.
TEST(CudaVectorScan, ManyVectorsOfSeveralScopes) {
  INFERSCALE_NEEDS_DEVICE();
  const std::size_t dim = 8;
  const std::uint32_t count = 150001;
  const auto vectors = whole_vectors(count, dim, 13);
  const auto queries = whole_vectors(3, dim, 14);
  const auto scan = scan_of({dim, KvCodec::kF16, count, 3, 1024});
  ASSERT_NE(scan, nullptr);
  ASSERT_TRUE(scan->write(0, std::span(vectors).first(70000 * dim)).ok());
  ASSERT_TRUE(scan->write(70000, std::span(vectors).subspan(70000 * dim)).ok());
  const std::vector<ScanScope> scopes = {{0, count}, {3, 100}, {50000, 90000}};
  for (const std::size_t k : {10U, 64U, 1024U}) {
    const auto hits = search(*scan, queries, scopes, k);
    for (std::size_t q = 0; q < scopes.size(); ++q) {
      const auto want =
          vector_scan(std::span(vectors).subspan(scopes[q].first * dim, scopes[q].count * dim), dim,
                      std::span(queries).subspan(q * dim, dim), k);
      EXPECT_TRUE(same_hits(want, hits[q])) << "k " << k << " query " << q;
    }
  }
}

// Random numbers: scores within rounding of those in double, and none left out that is better.
TEST(CudaVectorScan, RandomVectors) {
  INFERSCALE_NEEDS_DEVICE();
  const std::size_t dim = 384;
  const std::uint32_t count = 100000;
  const auto vectors = random_vectors(count, dim, 7);
  const auto query = random_vectors(1, dim, 8);
  std::vector<double> scores(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::size_t d = 0; d < dim; ++d) {
      scores[i] += double{vectors[i * dim + d]} * double{query[d]};
    }
  }
  std::vector<double> sorted = scores;
  std::sort(sorted.rbegin(), sorted.rend());
  for (const KvCodec dtype : {KvCodec::kF32, KvCodec::kF16}) {
    const auto scan = scan_of({dim, dtype, count, 1, 64});
    ASSERT_NE(scan, nullptr);
    ASSERT_TRUE(scan->write(0, vectors).ok());
    const auto hits = search(*scan, query, {{0, count}}, 50)[0];
    ASSERT_EQ(hits.size(), 50U);
    for (std::size_t i = 0; i < hits.size(); ++i) {
      EXPECT_NEAR(hits[i].score, scores[hits[i].index], 1e-3);
      EXPECT_NEAR(hits[i].score, sorted[i], 1e-3);
    }
  }
}

TEST(CudaVectorScan, NaNInfinityAndSignedZero) {
  INFERSCALE_NEEDS_DEVICE();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> vectors = {nan, -inf, -0.0F, 0.0F, 1.0F, inf, nan, 1.0F};
  const auto scan = scan_of({1, KvCodec::kF32, 8, 1, 8});
  ASSERT_NE(scan, nullptr);
  ASSERT_TRUE(scan->write(0, vectors).ok());
  const std::vector<float> one = {1.0F};
  const auto hits = search(*scan, one, {{0, 8}}, 8)[0];
  EXPECT_TRUE(same_hits(vector_scan(vectors, 1, one, 8), hits));
}

TEST(CudaVectorScan, RefusesWhatIsOutOfRange) {
  INFERSCALE_NEEDS_DEVICE();
  const auto scan = scan_of({4, KvCodec::kF32, 10, 2, 5});
  ASSERT_NE(scan, nullptr);
  const std::vector<float> query(4, 1.0F);
  const std::vector<ScanScope> all = {{0, 10}};
  const auto code = [&](const std::vector<float>& q, const std::vector<ScanScope>& s,
                        std::size_t k) { return scan->start(q, s, k, nullptr).code(); };
  EXPECT_EQ(code(query, {{1, 10}}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(query, all, 6), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(query, all, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1.0F}, all, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, {}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(scan->write(8, std::vector<float>(12)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scan->finish().status().code(), StatusCode::kConflict);
  ASSERT_EQ(code(query, all, 1), StatusCode::kOk);
  EXPECT_EQ(code(query, all, 1), StatusCode::kConflict);
  EXPECT_TRUE(scan->finish().ok());
}

}  // namespace
}  // namespace inferscale::cuda
