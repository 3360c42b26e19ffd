#include "kv/page_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/page_layout.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

PageLayout layout_of(const SampleOptions& options, std::uint32_t tokens_per_page = 4) {
  return {options.shape, options.codec, tokens_per_page};
}

std::unique_ptr<PlainPageMemory> make_memory(const PageLayout& layout, std::size_t n_pages) {
  auto memory = PlainPageMemory::create("plain", layout, n_pages);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return std::move(memory).value();
}

std::vector<std::byte> read_page(PageMemory& memory, std::uint32_t page) {
  std::vector<std::byte> bytes(memory.layout().page_bytes(), std::byte{0xEE});
  EXPECT_TRUE(memory.read(page, bytes).ok());
  return bytes;
}

bool is_zero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(PageMemory, GivesBackWhatWasWritten) {
  for (const std::uint32_t n_tokens : {1U, 3U, 4U, 5U, 9U}) {
    for (const KvCodec codec :
         {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8, KvCodec::kFp8E4m3}) {
      SampleOptions options;
      options.codec = codec;
      options.shape = {3, 3, 6, 10};
      options.n_tokens = n_tokens;
      const auto record = make_record(options);
      const PageLayout layout = layout_of(options);
      const auto memory = make_memory(layout, 8);
      std::vector<std::uint32_t> pages = {6, 2, 7};
      pages.resize(layout.pages_for(n_tokens));
      ASSERT_TRUE(memory->write(pages, *record).ok());
      RecordBuilder builder =
          std::move(RecordBuilder::create(record->meta(), record->token_ids())).value();
      for (std::size_t i = 0; i < pages.size(); ++i) {
        page_to_record(layout, read_page(*memory, pages[i]), i, builder);
      }
      EXPECT_TRUE(same_bytes(std::move(builder).seal()->bytes(), record->bytes()));
      EXPECT_TRUE(is_zero(read_page(*memory, 0))) << "no other page is touched";
    }
  }
}

TEST(PageMemory, AddressesAreThoseOfTheLayout) {
  SampleOptions options;
  options.n_tokens = 6;
  const auto record = make_record(options);
  const PageLayout layout = layout_of(options);
  const auto memory = make_memory(layout, 4);
  const std::uint32_t pages[] = {3, 1};
  ASSERT_TRUE(memory->write(pages, *record).ok());
  for (std::uint32_t layer = 0; layer < options.shape.n_layers; ++layer) {
    for (std::uint32_t token = 0; token < options.n_tokens; ++token) {
      const std::byte* page = memory->page(pages[token / 4]);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(page) % 64, 0U);
      const std::span k(page + layout.k_offset(layer) + token % 4 * layout.k_token_bytes(),
                        layout.k_token_bytes());
      const std::span v(page + layout.v_offset(layer) + token % 4 * layout.v_token_bytes(),
                        layout.v_token_bytes());
      EXPECT_TRUE(same_bytes(k, {record->layer_k(layer) + token * k.size(), k.size()}));
      EXPECT_TRUE(same_bytes(v, {record->layer_v(layer) + token * v.size(), v.size()}));
    }
  }
}

// Nothing of what a page held before is left behind a shorter record, not even in the padding.
TEST(PageMemory, AWriteSetsEveryByte) {
  SampleOptions options;
  options.n_tokens = 1;
  const PageLayout layout = layout_of(options);
  const auto memory = make_memory(layout, 1);
  const auto clean = make_memory(layout, 1);
  std::fill_n(memory->page(0), layout.page_bytes(), std::byte{0xAB});
  const std::uint32_t pages[] = {0};
  ASSERT_TRUE(memory->write(pages, *make_record(options)).ok());
  ASSERT_TRUE(clean->write(pages, *make_record(options)).ok());
  EXPECT_EQ(read_page(*memory, 0), read_page(*clean, 0));
}

TEST(PageMemory, CopiesAndZeroesPages) {
  SampleOptions options;
  options.n_tokens = 8;
  const PageLayout layout = layout_of(options);
  const auto from = make_memory(layout, 4), to = make_memory(layout, 4);
  const std::uint32_t sources[] = {0, 1}, targets[] = {3, 2};
  ASSERT_TRUE(from->write(sources, *make_record(options)).ok());
  const std::byte* const addresses[] = {from->page(0), from->page(1)};
  ASSERT_TRUE(to->copy(targets, addresses).ok());
  EXPECT_EQ(read_page(*to, 3), read_page(*from, 0));
  EXPECT_EQ(read_page(*to, 2), read_page(*from, 1));
  EXPECT_FALSE(is_zero(read_page(*to, 2)));
  const std::uint32_t gone[] = {2};
  ASSERT_TRUE(to->zero(gone).ok());
  EXPECT_TRUE(is_zero(read_page(*to, 2)));
  EXPECT_EQ(read_page(*to, 3), read_page(*from, 0));
  EXPECT_TRUE(to->publish(nullptr).ok());
  EXPECT_TRUE(to->settle().ok());
}

TEST(PageMemory, RefusesWhatDoesNotFit) {
  SampleOptions options;
  options.n_tokens = 5;
  const PageLayout layout = layout_of(options);
  const auto memory = make_memory(layout, 2);
  const auto record = make_record(options);
  const std::uint32_t one[] = {0}, both[] = {0, 1}, outside[] = {0, 2};
  const auto code = [&](std::span<const std::uint32_t> pages, const Record& what) {
    return memory->write(pages, what).code();
  };
  EXPECT_EQ(code(one, *record), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(outside, *record), StatusCode::kInvalidArgument);
  SampleOptions wide = options;
  wide.codec = KvCodec::kF32;
  EXPECT_EQ(code(both, *make_record(wide)), StatusCode::kInvalidArgument);
  SampleOptions deep = options;
  deep.shape.n_layers = 3;
  EXPECT_EQ(code(both, *make_record(deep)), StatusCode::kInvalidArgument);
  const auto described = Record::describe(record->meta(), record->token_ids());
  EXPECT_EQ(code(both, **described), StatusCode::kInvalidArgument);
  const std::byte* const source[] = {memory->page(0)};
  EXPECT_EQ(memory->copy(both, source).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->zero(outside).code(), StatusCode::kInvalidArgument);
  std::vector<std::byte> out(layout.page_bytes());
  EXPECT_EQ(memory->read(2, out).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(is_zero(read_page(*memory, 0)) && is_zero(read_page(*memory, 1)));
  EXPECT_EQ(code(both, *record), StatusCode::kOk);
}

TEST(PageMemory, CreateChecksItsArguments) {
  const PageLayout layout{{1, 1, 2, 2}, KvCodec::kF16, 4};
  const auto code = [](const PageLayout& of, std::size_t n_pages) {
    return PlainPageMemory::create("plain", of, n_pages).status().code();
  };
  EXPECT_EQ(code(layout, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(layout, std::size_t{1} << 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{1, 1, 3, 2}, KvCodec::kF16, 4}, 1), StatusCode::kInvalidArgument);
  const PageLayout huge{{1024, 1024, 1024, 1024}, KvCodec::kF32, 256};
  ASSERT_TRUE(huge.validate().ok());
  EXPECT_EQ(code(huge, 0xFFFFFFFF), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace inferscale::testing
