#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/catalog.h"
#include "retrieval/vector_index.h"

namespace inferscale {

/// The vectors of one scope: rows in ingest order, one per chunk. Not thread-safe.
class VectorIndex::Table {
 public:
  explicit Table(std::size_t dim) : dim_(dim) {}

  /// Replaces everything. Errors: kDataLoss when the rows do not fit together.
  [[nodiscard]] Status assign(VectorRows rows);
  /// REQUIRES: values.size() is a multiple of dim.
  void put(const std::string& fact_id, std::span<const float> values);
  void remove(const std::string& fact_id);

  /// As VectorIndex::search.
  [[nodiscard]] std::vector<VectorHit> search(std::span<const float> query, std::size_t k,
                                              const IdSet* only) const;

  [[nodiscard]] std::size_t rows() const { return row_fact_.size() - dead_rows_; }
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct RowRange {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  std::uint32_t slot_of(const std::string& fact_id);
  void append(std::uint32_t slot, std::span<const float> values);
  void compact();
  std::vector<RowRange> permitted_ranges(const IdSet* only) const;
  std::vector<std::pair<float, std::size_t>> best_rows(std::span<const RowRange> ranges,
                                                       std::span<const float> query,
                                                       std::size_t n) const;

  const std::size_t dim_;
  std::vector<float> values_;  // [rows][dim]; a removed row is all NaN, which no scan returns
  std::vector<std::uint32_t> row_fact_;  // [rows], into fact_ids_
  std::vector<std::string> fact_ids_;
  std::unordered_map<std::string, std::uint32_t> slots_;
  std::size_t id_bytes_ = 0;
  std::size_t dead_rows_ = 0;
};

}  // namespace inferscale
