// What the encode contexts ask of an engine beyond a plain prefix: a fact behind injected KV (log),
// facts that see those before them in one branch (chain), and facts behind nothing (alone). The
// captured rows must be those of a plain fp64 forward pass that was given the same context.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "equivalence/engine_fixture.h"
#include "support/oracle_model.h"

namespace inferscale::testing {
namespace {

// Of the largest element. libllama's own rounding (f16 inside its flash attention) stays below.
constexpr double kLimit = 0.01;

std::vector<std::int32_t> positions_from(std::size_t first, std::size_t count) {
  std::vector<std::int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
  return positions;
}

/// How far the record's rows are from the oracle's, over all layers.
double distance(const Record& record, const OracleKv& expected) {
  double largest = 0;
  double worst = 0;
  const auto compare = [&](const std::byte* rows, const std::vector<Vector>& wanted) {
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      for (std::size_t i = 0; i < wanted[row].size(); ++i) {
        float value = 0;
        std::memcpy(&value, rows + (row * wanted[row].size() + i) * sizeof(float), sizeof(float));
        largest = std::max(largest, std::abs(wanted[row][i]));
        worst = std::max(worst, std::abs(wanted[row][i] - static_cast<double>(value)));
      }
    }
  };
  EXPECT_EQ(record.n_tokens(), expected.rows());
  for (std::size_t layer = 0; layer < expected.layers.size(); ++layer) {
    compare(record.layer_k(static_cast<std::uint32_t>(layer)), expected.layers[layer].keys);
    compare(record.layer_v(static_cast<std::uint32_t>(layer)), expected.layers[layer].values);
  }
  return worst / largest;
}

class EncodeContextRows : public EngineFixture {
 protected:
  void SetUp() override {
    EngineFixture::SetUp();
    oracle_ = std::make_unique<OracleModel>(OracleModel::load(path_).value());
    oracle_->set_f16_attention(true);
  }

  [[nodiscard]] OracleKv forward(const std::vector<TokenId>& tokens, const OracleKv& past) const {
    return oracle_->forward(tokens, positions_from(past.rows(), tokens.size()), past).kv;
  }

  /// Prefills `plan` and `tokens` and gives a record of each range.
  std::vector<std::shared_ptr<const Record>> encode(
      std::vector<Segment> plan, const std::vector<TokenId>& tokens,
      const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
    RunRequest request;
    request.plan = std::move(plan);
    request.branches.resize(2);  // as when a batch is encoded
    request.branches[0].tokens = tokens;
    request.branches[1].tokens = question_;
    for (const auto& [begin, end] : ranges) {
      request.branches[0].captures.push_back(
          {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), meta()});
    }
    return run(request).branches.at(0).records;
  }

  const std::vector<TokenId>& header() const { return segments_[0]; }
  const std::vector<TokenId>& fact(std::size_t i) const { return segments_[i]; }

  std::unique_ptr<OracleModel> oracle_;
};

TEST_F(EncodeContextRows, BehindInjectedKv) {
  // The log's fact was encoded behind other tokens and stands elsewhere now.
  const std::size_t h = header().size();
  const std::size_t first = h + fact(1).size();
  const auto made =
      encode({{header(), {}}, {fact(1), {}}}, fact(2), {{0, h}, {first, first + fact(2).size()}});
  const auto record = encode({{header(), Lease(made[0])}, {fact(2), Lease(made[1])}}, fact(3),
                             {{h + fact(2).size(), h + fact(2).size() + fact(3).size()}})
                          .at(0);
  const OracleKv header_kv = forward(header(), {});
  OracleKv behind_first = header_kv;
  behind_first.append(forward(fact(1), header_kv));
  OracleKv past = header_kv;
  past.append(
      forward(fact(2), behind_first).slice(0, fact(2).size(), static_cast<std::int32_t>(h)));
  EXPECT_LE(distance(*record, forward(fact(3), past)), kLimit);
  EXPECT_GT(distance(*record, forward(fact(3), header_kv)), 3 * kLimit)
      << "the header alone is another context";
}

TEST_F(EncodeContextRows, BehindTheFactsBeforeInOneBranch) {
  const std::size_t h = header().size();
  const std::size_t middle = h + fact(1).size();
  std::vector<TokenId> both = fact(1);
  both.insert(both.end(), fact(2).begin(), fact(2).end());
  const auto records = encode({{header(), {}}}, both, {{h, middle}, {middle, h + both.size()}});
  const OracleKv header_kv = forward(header(), {});
  OracleKv past = header_kv;
  past.append(forward(fact(1), header_kv));
  EXPECT_LE(distance(*records.at(0), forward(fact(1), header_kv)), kLimit);
  EXPECT_LE(distance(*records.at(1), forward(fact(2), past)), kLimit);
  EXPECT_GT(distance(*records.at(1), forward(fact(2), header_kv)), 3 * kLimit)
      << "the header alone is another context";
}

TEST_F(EncodeContextRows, BehindNothing) {
  const auto record = encode({}, fact(1), {{0, fact(1).size()}}).at(0);
  EXPECT_LE(distance(*record, forward(fact(1), {})), kLimit);
  EXPECT_GT(distance(*record, forward(fact(1), forward(header(), {}))), 3 * kLimit)
      << "the header is another context";
}

}  // namespace
}  // namespace inferscale::testing
