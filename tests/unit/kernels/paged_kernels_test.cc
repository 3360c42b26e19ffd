#include "kernels/paged_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "unit/kernels/reference.h"
#include "unit/kernels/test_cache.h"

namespace inferscale::kernels {
namespace {

constexpr std::uint32_t kPositions = 256;
constexpr std::size_t kRows = 32;
const KvShape kShape{2, 3, 20, 18};

struct PagedRecord {
  PagedRecord(const std::shared_ptr<const Record>& record, const PageLayout& layout) {
    const std::size_t count = layout.pages_for(record->n_tokens());
    storage.resize(count, std::vector<std::byte>(layout.page_bytes()));
    for (std::size_t i = 0; i < count; ++i) {
      record_to_page(layout, *record, i, storage[i]);
      pages.push_back(storage[i].data());
    }
  }
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> pages;
};

PagedCache paged(const std::shared_ptr<const RopeTable>& table, TestCache& cache,
                 const PageLayout& pages) {
  return {table, cache.layout(), pages, 64};
}

std::shared_ptr<const RopeTable> some_table() {
  return table_of(specs_of_every_scaling(RopePairing::kHalves, 12)[3], kPositions);
}

/// Whether two caches of one arrangement hold the same bytes in every cell.
bool same_cells(const TestCache& a, const TestCache& b, KvCodec dtype) {
  const std::size_t element = codec_element_bytes(dtype);
  bool same = true;
  const auto equal = [&](const Head& one, const Head& two, std::size_t dim) {
    for (std::size_t i = 0; i < dim; ++i) {
      same = same && std::equal(one.at(i), one.at(i) + element, two.at(i));
    }
  };
  for (std::uint32_t layer = 0; layer < kShape.n_layers; ++layer) {
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::uint32_t head = 0; head < kShape.n_kv_heads; ++head) {
        equal(a.k(layer, row, head), b.k(layer, row, head), kShape.head_dim_k);
        equal(a.v(layer, row, head), b.v(layer, row, head), kShape.head_dim_v);
      }
    }
  }
  return same;
}

TEST(PagedKernels, ComposeGivesWhatKvComposeGives) {
  const auto table = some_table();
  const std::uint32_t rows_a[] = {7, 0, 31, 3, 10, 12, 1}, rows_b[] = {20, 21, 5};
  for (const Arrangement arrangement : kArrangements) {
    for (const auto& [codec, dtype] : {std::pair{KvCodec::kF16, KvCodec::kF16},
                                       {KvCodec::kF32, KvCodec::kF16},
                                       {KvCodec::kF16, KvCodec::kF32},
                                       {KvCodec::kBf16, KvCodec::kBf16},
                                       {KvCodec::kQ8, KvCodec::kBf16},
                                       {KvCodec::kFp8E4m3, KvCodec::kF16}}) {
      const PageLayout layout{kShape, codec, 4};
      const auto a = random_record(meta_of(kShape, codec), 7, 1);
      const auto b = random_record(meta_of(kShape, codec), 3, 2);
      const PagedRecord pages_a(a, layout), pages_b(b, layout);
      TestCache expected(kShape, dtype, kRows, arrangement),
          cache(kShape, dtype, kRows, arrangement);
      ASSERT_TRUE(same_cells(expected, cache, dtype));
      const ComposeItem items[] = {{a.get(), 100, 0, rows_a}, {b.get(), 5, 0, rows_b}};
      ASSERT_TRUE(kv_compose(items, *table, expected.layout()).ok());
      auto composer = make_cpu_composer(paged(table, cache, layout));
      ASSERT_TRUE(composer.ok()) << composer.status().to_string();
      const PagedItem wanted[] = {{pages_a.pages, 0, 7, 100, rows_a},
                                  {pages_b.pages, 0, 3, 5, rows_b}};
      ASSERT_TRUE((*composer)->compose(wanted, nullptr).ok());
      EXPECT_TRUE(same_cells(expected, cache, dtype)) << describe(arrangement);
    }
  }
}

TEST(PagedKernels, PartOfARecordAcrossPages) {
  const auto table = some_table();
  const PageLayout layout{kShape, KvCodec::kF16, 4};
  const auto record = random_record(meta_of(kShape, KvCodec::kF16), 11, 1);
  const PagedRecord pages(record, layout);
  std::vector<std::uint32_t> all(11);
  std::iota(all.begin(), all.end(), 2U);
  TestCache whole(kShape, KvCodec::kF16, kRows), parts(kShape, KvCodec::kF16, kRows);
  const ComposeItem item[] = {{record.get(), 40, 0, all}};
  ASSERT_TRUE(kv_compose(item, *table, whole.layout()).ok());
  auto composer = std::move(make_cpu_composer(paged(table, parts, layout))).value();
  const std::span<const std::uint32_t> rows(all);
  const PagedItem items[] = {{pages.pages, 3, 6, 43, rows.subspan(3, 6)},
                             {pages.pages, 0, 3, 40, rows.first(3)},
                             {pages.pages, 9, 2, 49, rows.last(2)},
                             {pages.pages, 11, 0, 51, {}}};
  ASSERT_TRUE(composer->compose(items, nullptr).ok());
  EXPECT_TRUE(same_cells(whole, parts, KvCodec::kF16));
}

void capture_and_compare(KvCodec codec) {
  const auto table = some_table();
  for (const Arrangement arrangement : kArrangements) {
    TestCache cache(kShape, KvCodec::kF32, kRows, arrangement);
    const std::uint32_t rows_a[] = {4, 9, 1, 30}, rows_b[] = {0};
    auto capturer = std::move(make_cpu_capturer(paged(table, cache, {kShape, codec, 4}))).value();
    const CaptureRun runs[] = {{50, rows_a}, {3, rows_b}};
    auto batch = std::move(capturer->capture(runs, nullptr)).value();
    capturer.reset();
    ASSERT_TRUE(batch->wait().ok());
    for (std::size_t run = 0; run < 2; ++run) {
      const std::vector<TokenId> tokens(runs[run].rows.size(), 7);
      const RecordMeta meta = meta_of(kShape, codec);
      RecordBuilder expected = std::move(RecordBuilder::create(meta, tokens)).value();
      RecordBuilder got = std::move(RecordBuilder::create(meta, tokens)).value();
      const CaptureSource source{runs[run].first_position, 0, runs[run].rows};
      ASSERT_TRUE(kv_capture(cache.const_layout(), source, *table, expected).ok());
      ASSERT_TRUE(batch->read(run, got).ok());
      const auto a = std::move(expected).seal(), b = std::move(got).seal();
      EXPECT_TRUE(std::equal(a->bytes().begin(), a->bytes().end(), b->bytes().begin()));
    }
    RecordBuilder other =
        std::move(RecordBuilder::create(meta_of(kShape, codec), std::vector<TokenId>(3))).value();
    EXPECT_EQ(batch->read(0, other).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(batch->read(2, other).code(), StatusCode::kInvalidArgument);
  }
}

TEST(PagedKernels, CaptureGivesWhatKvCaptureGives) { capture_and_compare(KvCodec::kF16); }

TEST(PagedKernels, ScaledCaptureGivesWhatKvCaptureGives) {
  capture_and_compare(KvCodec::kQ8);
  capture_and_compare(KvCodec::kFp8E4m3);
}

// Only the run that holds it.
TEST(PagedKernels, WhatAScaledCodecCannotHoldIsToldWhenItIsRead) {
  const auto table = some_table();
  TestCache cache(kShape, KvCodec::kF32, kRows);
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(const_cast<std::byte*>(cache.v(1, 9, 2).at(17)), &bad, sizeof(bad));
  auto capturer =
      std::move(make_cpu_capturer(paged(table, cache, {kShape, KvCodec::kQ8, 4}))).value();
  const std::uint32_t good_rows[] = {4, 1}, bad_rows[] = {8, 9};
  const CaptureRun runs[] = {{50, good_rows}, {3, bad_rows}};
  auto batch = capturer->capture(runs, nullptr);
  ASSERT_TRUE(batch.ok());
  ASSERT_TRUE((*batch)->wait().ok());
  const std::vector<TokenId> tokens(2, 7);
  RecordBuilder one =
      std::move(RecordBuilder::create(meta_of(kShape, KvCodec::kQ8), tokens)).value();
  EXPECT_TRUE((*batch)->read(0, one).ok());
  EXPECT_EQ((*batch)->read(1, one).code(), StatusCode::kInvalidArgument);
}

TEST(PagedKernels, WhatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  const auto table = some_table();
  const PageLayout layout{kShape, KvCodec::kF16, 4};
  const auto record = random_record(meta_of(kShape, KvCodec::kF16), 6, 1);
  const PagedRecord pages(record, layout);
  TestCache cache(kShape, KvCodec::kF16, kRows);
  auto composer = std::move(make_cpu_composer(paged(table, cache, layout))).value();
  const std::uint32_t rows[] = {0, 1, 2, 3, 4, 5}, outside[] = {0, 1, 2, 3, 4, kRows};
  const std::vector<const std::byte*> hole = {pages.pages[0], nullptr};
  const auto code = [&](const PagedItem& item) {
    const PagedItem items[] = {{pages.pages, 0, 6, 0, rows}, item};
    return composer->compose(items, nullptr).code();
  };
  EXPECT_EQ(code({pages.pages, 0, 6, 0, outside}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({pages.pages, 0, 5, 0, rows}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({pages.pages, 0, 6, 0, {}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({pages.pages, 3, 6, 0, rows}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({pages.pages, 0xFFFFFFFF, 6, 0, rows}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({hole, 0, 6, 0, rows}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({pages.pages, 0, 6, kPositions - 5, rows}), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache.intact_except({}));
  EXPECT_EQ(code({pages.pages, 0, 6, kPositions - 6, rows}), StatusCode::kOk);

  auto capturer = std::move(make_cpu_capturer(paged(table, cache, layout))).value();
  const auto capture = [&](const CaptureRun& run) {
    return capturer->capture({&run, 1}, nullptr).status().code();
  };
  EXPECT_EQ(capture({0, {}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(capture({0, outside}), StatusCode::kInvalidArgument);
  EXPECT_EQ(capture({kPositions - 5, rows}), StatusCode::kInvalidArgument);
  EXPECT_EQ(capture({kPositions - 6, rows}), StatusCode::kOk);
  PagedCache few = paged(table, cache, layout);
  few.max_tokens = 5;
  EXPECT_EQ((*make_cpu_capturer(few))
                ->capture(std::vector<CaptureRun>{{0, rows}}, nullptr)
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  few.pages.shape.n_layers = 1;
  EXPECT_EQ(make_cpu_composer(few).status().code(), StatusCode::kInvalidArgument);
  few = paged(nullptr, cache, layout);
  EXPECT_EQ(make_cpu_composer(few).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::kernels
