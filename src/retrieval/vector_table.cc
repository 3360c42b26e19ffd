#include "retrieval/vector_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "inferscale/kv_kernels.h"

namespace inferscale {
namespace {

// Fewer removed rows than this are not worth moving the others.
constexpr std::size_t kMinDeadRows = 256;
// Heap and map node around one id, for the byte budget.
constexpr std::size_t kOverheadPerFact = 160;

}  // namespace

Status VectorIndex::Table::assign(VectorRows rows) {
  const std::size_t count = rows.fact_ids.size();
  if (count != 0 && (rows.dim != dim_ || rows.values.size() != count * dim_)) {
    return data_loss(fmt::format(
        "the catalog holds {} vectors with {} values for an embedder of dim {}: embed the facts "
        "of this scope again",
        count, rows.values.size(), dim_));
  }
  values_ = std::move(rows.values);
  row_fact_.clear();
  row_fact_.reserve(count);
  fact_ids_.clear();
  slots_.clear();
  id_bytes_ = 0;
  dead_rows_ = 0;
  for (const std::string& id : rows.fact_ids) {
    row_fact_.push_back(slot_of(id));
  }
  return Status();
}

std::uint32_t VectorIndex::Table::slot_of(const std::string& fact_id) {
  const auto [position, inserted] =
      slots_.try_emplace(fact_id, static_cast<std::uint32_t>(fact_ids_.size()));
  if (inserted) {
    fact_ids_.push_back(fact_id);
    id_bytes_ += 2 * fact_id.size() + kOverheadPerFact;
  }
  return position->second;
}

void VectorIndex::Table::append(std::uint32_t slot, std::span<const float> values) {
  if (values_.capacity() < values_.size() + values.size()) {
    // By an eighth, not by doubling: a scope of 100,000 facts is 150 MB.
    values_.reserve(values_.size() + std::max(values_.size() / 8, values.size() + 64 * dim_));
  }
  values_.insert(values_.end(), values.begin(), values.end());
  row_fact_.insert(row_fact_.end(), values.size() / dim_, slot);
}

void VectorIndex::Table::put(const std::string& fact_id, std::span<const float> values) {
  remove(fact_id);
  if (!values.empty()) {
    append(slot_of(fact_id), values);
  }
}

void VectorIndex::Table::remove(const std::string& fact_id) {
  const auto position = slots_.find(fact_id);
  if (position == slots_.end()) {
    return;
  }
  for (std::size_t row = 0; row < row_fact_.size(); ++row) {
    if (row_fact_[row] == position->second) {
      std::fill_n(values_.begin() + static_cast<std::ptrdiff_t>(row * dim_), dim_,
                  std::numeric_limits<float>::quiet_NaN());
      ++dead_rows_;
    }
  }
  slots_.erase(position);  // a later put gets a new slot, so that the dead rows stay nobody's
  if (dead_rows_ >= kMinDeadRows && dead_rows_ * 4 >= row_fact_.size()) {
    compact();
  }
}

void VectorIndex::Table::compact() {
  Table live(dim_);
  live.values_.reserve(rows() * dim_);
  for (std::size_t row = 0; row < row_fact_.size(); ++row) {
    const std::string& id = fact_ids_[row_fact_[row]];
    const auto position = slots_.find(id);
    if (position != slots_.end() && position->second == row_fact_[row]) {
      live.append(live.slot_of(id), std::span(values_).subspan(row * dim_, dim_));
    }
  }
  values_ = std::move(live.values_);
  row_fact_ = std::move(live.row_fact_);
  fact_ids_ = std::move(live.fact_ids_);
  slots_ = std::move(live.slots_);
  id_bytes_ = live.id_bytes_;
  dead_rows_ = 0;
}

std::size_t VectorIndex::Table::bytes() const {
  return values_.capacity() * sizeof(float) + row_fact_.capacity() * sizeof(std::uint32_t) +
         id_bytes_;
}

std::vector<VectorIndex::Table::RowRange> VectorIndex::Table::permitted_ranges(
    const IdSet* only) const {
  if (only == nullptr) {
    return {{0, row_fact_.size()}};
  }
  std::vector<bool> permitted(fact_ids_.size());
  for (std::size_t slot = 0; slot < fact_ids_.size(); ++slot) {
    permitted[slot] = only->contains(fact_ids_[slot]);
  }
  std::vector<RowRange> ranges;
  for (std::size_t row = 0; row < row_fact_.size(); ++row) {
    if (!permitted[row_fact_[row]]) {
      continue;
    }
    if (!ranges.empty() && ranges.back().end == row) {
      ranges.back().end = row + 1;
    } else {
      ranges.push_back({row, row + 1});
    }
  }
  return ranges;
}

std::vector<std::pair<float, std::size_t>> VectorIndex::Table::best_rows(
    std::span<const RowRange> ranges, std::span<const float> query, std::size_t n) const {
  std::vector<std::pair<float, std::size_t>> best;
  for (const RowRange& range : ranges) {
    const auto rows =
        std::span(values_).subspan(range.begin * dim_, (range.end - range.begin) * dim_);
    for (const ScanHit& hit : vector_scan(rows, dim_, query, n)) {
      best.emplace_back(hit.score, range.begin + hit.index);
    }
  }
  if (ranges.size() > 1) {
    const auto better = [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    const std::size_t kept = std::min(n, best.size());
    std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), best.end(),
                      better);
    best.resize(kept);
  }
  return best;
}

std::vector<VectorHit> VectorIndex::Table::search(std::span<const float> query, std::size_t k,
                                                  const IdSet* only) const {
  const std::vector<RowRange> ranges = permitted_ranges(only);
  std::vector<VectorHit> hits;
  if (row_fact_.empty() || k == 0) {
    return hits;
  }
  // A long fact may fill the first n rows with its chunks: widen until k facts are among them.
  for (std::size_t n = k + k / 4 + 16;; n *= 4) {
    const auto rows = best_rows(ranges, query, std::min(n, row_fact_.size()));
    std::vector<bool> seen(fact_ids_.size());
    hits.clear();
    for (std::size_t i = 0; i < rows.size() && hits.size() < k; ++i) {
      const std::uint32_t slot = row_fact_[rows[i].second];
      if (!seen[slot]) {
        seen[slot] = true;
        hits.push_back({fact_ids_[slot], rows[i].first});
      }
    }
    if (hits.size() == k || rows.size() < n) {
      return hits;
    }
  }
}

}  // namespace inferscale
