#include "cli/eval/row_profile.h"

#include <algorithm>

namespace inferscale::cli {
namespace {

constexpr std::size_t kColumns = RowProfile::kPositions + 1;

std::size_t column(std::size_t position) { return std::min(position, RowProfile::kPositions); }

void add_rows(std::vector<std::vector<double>>& sum, const std::vector<std::vector<double>>& fact) {
  sum.resize(fact.size(), std::vector<double>(kColumns, 0));
  for (std::size_t layer = 0; layer < fact.size(); ++layer) {
    for (std::size_t position = 0; position < fact[layer].size(); ++position) {
      sum[layer][column(position)] += fact[layer][position];
    }
  }
}

}  // namespace

void RowProfile::add(const RowDistances& fact) {
  add_rows(sum_.k, fact.k);
  add_rows(sum_.v, fact.v);
  for (std::size_t position = 0; !fact.k.empty() && position < fact.k.front().size(); ++position) {
    count_[column(position)] += 1;
  }
}

RowDistances RowProfile::mean() const {
  RowDistances mean = sum_;
  for (auto* const rows : {&mean.k, &mean.v}) {
    for (std::vector<double>& layer : *rows) {
      for (std::size_t i = 0; i < layer.size(); ++i) {
        layer[i] /= std::max(count_[i], 1.0);
      }
    }
  }
  return mean;
}

}  // namespace inferscale::cli
