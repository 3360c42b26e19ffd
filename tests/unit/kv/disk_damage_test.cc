// Segments with flipped bits and lost ends: what is served is exact, and what is damaged can still
// be erased.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "unit/kv/disk_fixture.h"
#include "unit/kv/files.h"

namespace inferscale::testing {
namespace {

constexpr std::uint32_t kRecords = 3;  // of which the second is erased
const std::filesystem::path kSegment = kDiskDirectory / segment_format::segment_name(1);
const std::filesystem::path kIndex = kDiskDirectory / IndexFile::kName;

/// What a clean end leaves: one segment, and the index file.
std::map<std::string, std::vector<std::byte>> clean_files(bool tiny = false) {
  MemoryFileSystem memory;
  {
    const auto tier = open_tier(memory, 10);
    for (std::uint32_t number = 0; number < (tiny ? 1 : kRecords); ++number) {
      EXPECT_TRUE(put(*tier, number).ok());
    }
    if (!tiny) {
      EXPECT_TRUE(erase(*tier, {1}).ok());
    }
  }
  return all_files(memory, kDiskDirectory);
}

std::uint64_t entry_bytes() { return segment_format::kEntryHeaderBytes + Item(0).size(); }

TEST(DiskDamage, EveryTruncationCostsOnlyWhatIsCut) {
  const std::vector<std::byte> whole = clean_files().at(kSegment.filename());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    MemoryFileSystem memory;
    ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
    put_file(memory, kSegment, std::span(whole).first(length));
    const auto tier = open_tier(memory, 10);
    for (const std::uint32_t number : {0U, 2U}) {
      const bool whole_entry =
          length >= segment_format::kHeaderBytes + (number + 1) * entry_bytes();
      ASSERT_EQ(served(*tier, number), whole_entry ? Served::kExact : Served::kAbsent) << length;
    }
    ASSERT_EQ(served(*tier, 1), Served::kAbsent);
    ASSERT_TRUE(put(*tier, 2).ok());
    ASSERT_EQ(served(*tier, 2), Served::kExact);
    ASSERT_TRUE(erase(*tier, {0, 1, 2}).ok());
    ASSERT_FALSE(leaves_bytes(memory, 0) || leaves_bytes(memory, 2)) << length;
  }
}

TEST(DiskDamage, EveryFlippedBitIsFoundOrHarmless) {
  const auto files = clean_files();
  const std::vector<std::byte> whole = files.at(kSegment.filename());
  std::uint64_t lost = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    // The index file as a clean end left it, or none as after a crash.
    const bool with_index = bit % 3 == 0;
    std::vector<std::byte> flipped = whole;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    MemoryFileSystem memory;
    ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
    put_file(memory, kSegment, flipped);
    if (with_index) {
      put_file(memory, kIndex, files.at(IndexFile::kName));
    }
    const auto tier = open_tier(memory, 10);
    std::uint64_t exact = 0;
    for (const std::uint32_t number : {0U, 2U}) {
      const Served result = served(*tier, number);
      ASSERT_NE(result, Served::kWrong) << bit;
      exact += result == Served::kExact ? 1 : 0;
    }
    ASSERT_EQ(served(*tier, 1), Served::kAbsent) << bit;
    lost += 2 - exact;
    // No damage costs both, unless it is in the segment's own header.
    ASSERT_GE(exact + (bit / 8 < segment_format::kHeaderBytes ? 2U : 1U), 2U) << bit;
    ASSERT_TRUE(erase(*tier, {0, 1, 2}).ok());
    ASSERT_FALSE(leaves_bytes(memory, 0) || leaves_bytes(memory, 2)) << bit;
  }
  EXPECT_GT(lost, entry_bytes() * 8);
}

TEST(DiskDamage, EveryFlippedBitOfTheIndexFileIsFound) {
  const auto files = clean_files(true);
  const std::vector<std::byte> whole = files.at(IndexFile::kName);
  ASSERT_TRUE(decode_index(whole).has_value());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> flipped = whole;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_FALSE(decode_index(flipped).has_value()) << bit;
  }
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_FALSE(decode_index(std::span(whole).first(length)).has_value()) << length;
  }
}

TEST(DiskDamage, DamagedEntriesAreCountedAndNotFoundAgain) {
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
  const std::vector<std::byte> whole = clean_files().at(kSegment.filename());
  put_file(memory, kSegment, whole);
  flip_byte(memory, kSegment, segment_format::kHeaderBytes + 20);  // the first entry's key
  {
    const auto tier = open_tier(memory, 10);
    EXPECT_EQ(tier->stats().corrupt, 1U);
    EXPECT_EQ(tier->stats().torn, 0U);
    EXPECT_EQ(served(*tier, 2), Served::kExact);
  }
  ASSERT_TRUE(memory.remove(kIndex).ok());
  const auto tier = open_tier(memory, 10);
  EXPECT_EQ(tier->stats().corrupt, 0U);
  EXPECT_EQ(served(*tier, 2), Served::kExact);
}

TEST(DiskDamage, AnEntryThatGotElsewhereIsNone) {
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
  std::vector<std::byte> whole = clean_files().at(kSegment.filename());
  const std::vector<std::byte> first(
      whole.begin() + segment_format::kHeaderBytes,
      whole.begin() + static_cast<std::ptrdiff_t>(segment_format::kHeaderBytes + entry_bytes()));
  whole.insert(whole.end(), first.begin(), first.end());
  put_file(memory, kSegment, whole);
  const auto tier = open_tier(memory, 10);
  EXPECT_EQ(tier->stats().torn, 1U);
  EXPECT_EQ(tier->stats().records, 2U);
  EXPECT_EQ(served(*tier, 0), Served::kExact);
}

TEST(DiskDamage, SegmentsOfAnotherVersionOrNumberAreDropped) {
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
  put_file(memory, kDiskDirectory / segment_format::segment_name(7),
           clean_files().at(kSegment.filename()));
  const auto tier = open_tier(memory, 10);
  EXPECT_EQ(tier->stats().records, 0U);
  EXPECT_EQ(tier->stats().corrupt, 1U);
  EXPECT_TRUE(all_files(memory, kDiskDirectory).empty());
}

TEST(DiskDamage, ReadsAndWritesSegmentsOfVersion1) {
  const std::vector<std::byte> golden =
      read_bytes(std::filesystem::path(INFERSCALE_SOURCE_DIR) / "tests/golden/segment-v1.isseg");
  MemoryFileSystem memory;
  {
    const auto tier = open_tier(memory, 10);
    std::vector<RecordKey> evicted;
    ASSERT_TRUE(tier->put(key_of(1), make_tiny_record(), &evicted).ok());
    ASSERT_TRUE(put(*tier, 2).ok());
    ASSERT_TRUE(put(*tier, 3).ok());
    ASSERT_TRUE(erase(*tier, {2}).ok());
  }
  EXPECT_EQ(file_bytes(memory, kSegment), golden);
  MemoryFileSystem other;
  ASSERT_TRUE(other.make_private_directory(kDiskDirectory).ok());
  put_file(other, kSegment, golden);
  const auto tier = open_tier(other, 10);
  EXPECT_EQ(tier->stats().records, 2U);
  EXPECT_TRUE(same_bytes((*tier->get(key_of(1)))->bytes(), make_tiny_record()->bytes()));
  EXPECT_EQ(served(*tier, 3), Served::kExact);
}

TEST(DiskDamage, TheIndexFileIsAHintOnly) {
  const auto files = clean_files();
  MemoryFileSystem memory;
  ASSERT_TRUE(memory.make_private_directory(kDiskDirectory).ok());
  for (const auto& [name, bytes] : files) {
    put_file(memory, kDiskDirectory / name, bytes);
  }
  {
    auto tier = open_tier(memory, 10);
    EXPECT_FALSE(memory.info(kIndex).ok());  // from now on only the segments tell the truth
    EXPECT_EQ(tier->stats().records, 2U);
    ASSERT_TRUE(put(*tier, 5).ok());
    memory.power_cut();
  }
  put_file(memory, kIndex, files.at(IndexFile::kName));  // one that fits no more, or fits again
  const auto tier = open_tier(memory, 10);
  EXPECT_EQ(served(*tier, 0), Served::kExact);
  EXPECT_EQ(served(*tier, 2), Served::kExact);
  EXPECT_EQ(served(*tier, 5), Served::kAbsent);
}

}  // namespace
}  // namespace inferscale::testing
