#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "inferscale/kv_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_scan_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four independent sums hide the latency of the additions. The order of additions depends on `dim`
// alone, so equal rows have equal scores wherever they stand.
HWY_INLINE float inner_product(const float* a, const float* b, std::size_t dim) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= dim; i += 4 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), sum3);
  }
  for (; i + lanes <= dim; i += lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  }
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < dim; ++i) {
    total += a[i] * b[i];
  }
  return total;
}

void inner_products(const float* vectors, std::size_t count, std::size_t dim, const float* query,
                    float* scores) {
  for (std::size_t i = 0; i < count; ++i) {
    scores[i] = inner_product(vectors + i * dim, query, dim);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace inferscale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale {
namespace kernels {
namespace {
HWY_EXPORT(inner_products);
}  // namespace

// Scores of `count` rows, for the target chosen at run time.
static void score_rows(const float* vectors, std::size_t count, std::size_t dim, const float* query,
                       float* scores) {
  HWY_DYNAMIC_DISPATCH(inner_products)(vectors, count, dim, query, scores);
}

}  // namespace kernels

namespace {

constexpr std::size_t kBlock = 256;  // scores held at a time

bool better(const ScanHit& a, const ScanHit& b) {
  return a.score != b.score ? a.score > b.score : a.index < b.index;
}

// The best k hits so far, as a heap with the worst at its front.
class BestHits {
 public:
  explicit BestHits(std::size_t k) : k_(k) { hits_.reserve(k); }

  void offer(std::uint32_t index, float score) {
    if (hits_.size() == k_) {
      // Indices rise, so an equal score loses; NaN compares false and loses as well.
      if (!(score > hits_.front().score)) {
        return;
      }
      std::pop_heap(hits_.begin(), hits_.end(), better);
      hits_.back() = {index, score};
    } else if (std::isnan(score)) {
      return;
    } else {
      hits_.push_back({index, score});
    }
    std::push_heap(hits_.begin(), hits_.end(), better);
  }

  [[nodiscard]] std::vector<ScanHit> sorted() && {
    std::sort_heap(hits_.begin(), hits_.end(), better);
    return std::move(hits_);
  }

 private:
  std::size_t k_;
  std::vector<ScanHit> hits_;
};

}  // namespace

std::vector<ScanHit> vector_scan(std::span<const float> vectors, std::size_t dim,
                                 std::span<const float> query, std::size_t k) {
  if (dim == 0 || k == 0 || query.size() != dim || vectors.size() % dim != 0) {
    return {};
  }
  const std::size_t count = vectors.size() / dim;
  if (count > std::numeric_limits<std::uint32_t>::max()) {  // an index could not name every vector
    return {};
  }
  BestHits best(std::min(k, count));
  std::array<float, kBlock> scores;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = std::min(kBlock, count - first);
    kernels::score_rows(vectors.data() + first * dim, n, dim, query.data(), scores.data());
    for (std::size_t i = 0; i < n; ++i) {
      best.offer(static_cast<std::uint32_t>(first + i), scores[i]);
    }
  }
  return std::move(best).sorted();
}

}  // namespace inferscale
#endif  // HWY_ONCE
