#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/targets.h"

namespace inferscale::kernels {
namespace {

class VectorScanTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(VectorScanTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double product(std::span<const float> vectors, std::size_t dim, std::span<const float> query,
               std::size_t index) {
  double sum = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    sum += double{vectors[index * dim + i]} * double{query[i]};
  }
  return sum;
}

// Indices best first, by a full sort of double scores.
std::vector<std::uint32_t> sorted_indices(std::span<const float> vectors, std::size_t dim,
                                          std::span<const float> query, std::size_t k) {
  std::vector<double> scores(vectors.size() / dim);
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < scores.size(); ++i) {
    scores[i] = product(vectors, dim, query, i);
    if (!std::isnan(scores[i])) {
      indices.push_back(i);
    }
  }
  const std::size_t n = std::min(k, indices.size());
  std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(n),
                    indices.end(), [&](std::uint32_t a, std::uint32_t b) {
                      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                    });
  indices.resize(n);
  return indices;
}

std::vector<std::uint32_t> indices_of(const std::vector<ScanHit>& hits) {
  std::vector<std::uint32_t> indices;
  for (const ScanHit& hit : hits) {
    indices.push_back(hit.index);
  }
  return indices;
}

// Small whole numbers: every sum is exact in fp32 and many are equal.
std::vector<float> whole_numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int>(random() % 5) - 2);
  }
  return values;
}

std::vector<float> normals(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

TEST_P(VectorScanTest, TiesGoToTheLowerIndex) {
  for (const std::size_t dim : {1U, 2U, 3U, 7U, 8U, 15U, 31U, 33U, 64U, 100U, 384U, 385U}) {
    for (const std::size_t count : {1U, 2U, 255U, 256U, 257U, 1000U}) {
      const std::vector<float> vectors = whole_numbers(count * dim, 1);
      const std::vector<float> query = whole_numbers(dim, 2);
      for (const std::size_t k : {std::size_t{1}, std::size_t{5}, count / 2, count, count + 7}) {
        EXPECT_EQ(indices_of(vector_scan(vectors, dim, query, k)),
                  sorted_indices(vectors, dim, query, k))
            << "dim " << dim << " count " << count << " k " << k;
      }
    }
  }
}

TEST_P(VectorScanTest, ScoresAreInnerProducts) {
  constexpr std::size_t kDim = 384;
  const std::vector<float> vectors = normals(2000 * kDim, 3);
  const std::vector<float> query = normals(kDim, 4);
  const std::vector<ScanHit> hits = vector_scan(vectors, kDim, query, 50);
  ASSERT_EQ(hits.size(), 50U);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    EXPECT_NEAR(hits[i].score, product(vectors, kDim, query, hits[i].index), 1e-3);
    EXPECT_TRUE(i == 0 || hits[i - 1].score >= hits[i].score);
  }
  EXPECT_EQ(indices_of(hits), sorted_indices(vectors, kDim, query, 50));
}

// fp32 sums depend on their order; equal vectors must score the same wherever they stand.
TEST_P(VectorScanTest, EqualVectorsScoreEqual) {
  for (const std::size_t dim : {3U, 13U, 384U, 391U}) {
    const std::vector<float> one = normals(dim, 5);
    const std::vector<float> query = normals(dim, 6);
    std::vector<float> vectors;
    for (int i = 0; i < 515; ++i) {
      vectors.insert(vectors.end(), one.begin(), one.end());
    }
    const std::vector<ScanHit> hits = vector_scan(vectors, dim, query, 515);
    ASSERT_EQ(hits.size(), 515U);
    for (std::uint32_t i = 0; i < hits.size(); ++i) {
      EXPECT_EQ(hits[i].index, i);
      EXPECT_EQ(hits[i].score, hits[0].score);
    }
  }
}

TEST_P(VectorScanTest, NanIsNeverReturned) {
  constexpr std::size_t kDim = 40;
  std::vector<float> vectors = whole_numbers(600 * kDim, 7);
  std::vector<float> query = whole_numbers(kDim, 8);
  query[5] = 1.0F;
  query[6] = 1.0F;
  for (std::size_t i = 0; i < 600; i += 3) {
    vectors[i * kDim + i % kDim] = kNan;
  }
  vectors[kDim + 5] = kInfinity;       // +inf is a score like any other
  vectors[2 * kDim + 5] = -kInfinity;  // and so is -inf
  vectors[4 * kDim + 5] = kInfinity;   // inf - inf
  vectors[4 * kDim + 6] = -kInfinity;
  const std::vector<ScanHit> hits = vector_scan(vectors, kDim, query, 600);
  EXPECT_EQ(hits.size(), 399U);
  for (const ScanHit& hit : hits) {
    EXPECT_FALSE(std::isnan(hit.score));
    EXPECT_TRUE(hit.index % 3 != 0 && hit.index != 4);
  }
  EXPECT_EQ(hits.front().index, 1U);
  EXPECT_EQ(hits.back().index, 2U);
  EXPECT_EQ(indices_of(hits), sorted_indices(vectors, kDim, query, 600));
  query[0] = kNan;
  EXPECT_TRUE(vector_scan(vectors, kDim, query, 5).empty());
}

// The best hit comes after the heap has been filled, and before it, in rising and falling order.
TEST_P(VectorScanTest, OrderOfArrivalDoesNotMatter) {
  std::vector<float> rising(1000);
  std::iota(rising.begin(), rising.end(), -500.0F);
  const std::vector<float> query = {1.0F};
  const std::vector<float> falling(rising.rbegin(), rising.rend());
  for (const std::size_t k : {1U, 2U, 10U, 999U}) {
    EXPECT_EQ(indices_of(vector_scan(rising, 1, query, k)), sorted_indices(rising, 1, query, k));
    EXPECT_EQ(indices_of(vector_scan(falling, 1, query, k)), sorted_indices(falling, 1, query, k));
  }
}

TEST_P(VectorScanTest, EdgesGiveNothing) {
  const std::vector<float> vectors(12, 1.0F);
  const std::vector<float> query(4, 1.0F);
  EXPECT_TRUE(vector_scan(vectors, 4, query, 0).empty());
  EXPECT_TRUE(vector_scan(vectors, 0, {}, 3).empty());
  EXPECT_TRUE(vector_scan(vectors, 0, query, 3).empty());
  EXPECT_TRUE(vector_scan({}, 4, query, 3).empty());
  EXPECT_TRUE(vector_scan(vectors, 5, std::vector<float>(5, 1.0F), 3).empty());
  EXPECT_TRUE(vector_scan(vectors, 4, std::span(query).first(3), 3).empty());
  EXPECT_EQ(vector_scan(vectors, 4, query, std::numeric_limits<std::size_t>::max()).size(), 3U);
}

}  // namespace
}  // namespace inferscale::kernels
