#include "kv/cuda/page_memory_cuda.h"

#include <algorithm>
#include <numeric>

#include "cuda/move_rig.h"
#include "unit/kernels/reference.h"

namespace inferscale::cuda {
namespace {

const PageLayout kLayout{{3, 3, 24, 40}, KvCodec::kF16, 4};

std::shared_ptr<const Record> record_of(std::uint32_t n_tokens, std::uint64_t seed) {
  return kernels::random_record(kernels::meta_of(kLayout.shape, kLayout.codec), n_tokens, seed);
}

// Both kinds of memory, each with the clock of the device.
struct Memories {
  std::shared_ptr<CudaClock> clock;
  std::vector<std::unique_ptr<PageMemory>> all;
};

Memories make(std::size_t n_pages, std::size_t staging_pages = 64) {
  Memories m;
  m.clock = std::move(CudaClock::create(16)).value();
  auto gpu = CudaPageMemory::create(m.clock, kLayout, n_pages, {staging_pages});
  auto pinned = PinnedPageMemory::create(kLayout, n_pages);
  EXPECT_TRUE(gpu.ok()) << gpu.status().to_string();
  EXPECT_TRUE(pinned.ok()) << pinned.status().to_string();
  m.all.push_back(std::move(*gpu));
  m.all.push_back(std::move(*pinned));
  return m;
}

std::vector<std::byte> read_page(PageMemory& memory, std::uint32_t page) {
  std::vector<std::byte> bytes(kLayout.page_bytes(), std::byte{0xEE});
  EXPECT_TRUE(memory.read(page, bytes).ok());
  return bytes;
}

std::vector<std::byte> expected_page(const Record& record, std::size_t index) {
  std::vector<std::byte> bytes(kLayout.page_bytes(), std::byte{0xEE});
  record_to_page(kLayout, record, index, bytes);
  return bytes;
}

bool is_zero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(CudaPageMemory, WritesCopiesAndZeroes) {
  INFERSCALE_NEEDS_DEVICE();
  const Memories m = make(16);
  const auto record = record_of(10, 1);
  const auto other = record_of(4, 2);
  for (const auto& memory : m.all) {
    SCOPED_TRACE(memory->name());
    const std::uint32_t pages[] = {9, 2, 15};
    for (const std::uint32_t page : {0U, 2U, 9U, 15U}) {
      EXPECT_TRUE(is_zero(read_page(*memory, page))) << "new memory";
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->page(page)) % 64, 0U);
    }
    ASSERT_TRUE(memory->write(pages, *record).ok());
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(read_page(*memory, pages[i]), expected_page(*record, i));
    }
    const std::vector<std::byte> source = expected_page(*other, 0);
    const std::byte* sources[] = {source.data()};
    const std::uint32_t target[] = {2};
    const auto ticket = memory->copy(target, sources);
    ASSERT_TRUE(ticket.ok()) << ticket.status().to_string();
    EXPECT_TRUE(m.clock->wait(*ticket).ok());
    EXPECT_TRUE(m.clock->passed(*ticket));
    EXPECT_EQ(read_page(*memory, 2), source);
    const std::uint32_t gone[] = {9, 15};
    ASSERT_TRUE(memory->zero(gone).ok());
    EXPECT_TRUE(is_zero(read_page(*memory, 9)));
    EXPECT_TRUE(is_zero(read_page(*memory, 15)));
    EXPECT_EQ(read_page(*memory, 2), source);
  }
}

TEST(CudaPageMemory, RefusesWhatDoesNotFit) {
  INFERSCALE_NEEDS_DEVICE();
  const Memories m = make(8);
  for (const auto& memory : m.all) {
    const std::uint32_t two[] = {0, 1};
    const std::uint32_t beyond[] = {8};
    EXPECT_EQ(memory->write(two, *record_of(4, 1)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->write(beyond, *record_of(4, 1)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->zero(beyond).code(), StatusCode::kInvalidArgument);
    const auto wrong =
        kernels::random_record(kernels::meta_of({3, 3, 24, 48}, KvCodec::kF16), 4, 1);
    EXPECT_EQ(memory->write(std::span(two).first(1), *wrong).code(), StatusCode::kInvalidArgument);
  }
}

// A record longer than the staging memory, and many that share it.
TEST(CudaPageMemory, StagingIsUsedAgain) {
  INFERSCALE_NEEDS_DEVICE();
  const Memories m = make(40, 3);
  PageMemory& gpu = *m.all[0];
  const auto longest = record_of(4 * 40 - 1, 5);
  std::vector<std::uint32_t> pages(40);
  std::iota(pages.rbegin(), pages.rend(), 0);
  ASSERT_TRUE(gpu.write(pages, *longest).ok());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    ASSERT_EQ(read_page(gpu, pages[i]), expected_page(*longest, i));
  }
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::uint32_t one[] = {i};
    Status status = gpu.write(one, *record_of(4, 100 + i));
    if (status.code() == StatusCode::kResourceExhausted) {
      ASSERT_TRUE(gpu.settle().ok());
      status = gpu.write(one, *record_of(4, 100 + i));
    }
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_EQ(read_page(gpu, i), expected_page(*record_of(4, 100 + i), 0));
  }
}

// What was written before a publish is what work that comes into the stream afterwards sees.
TEST(CudaPageMemory, PublishOrdersWritesBeforeReaders) {
  INFERSCALE_NEEDS_DEVICE();
  const Memories m = make(64);
  PageMemory& gpu = *m.all[0];
  const Stream engine = std::move(Stream::create()).value();
  std::vector<std::uint32_t> pages(64);
  std::iota(pages.begin(), pages.end(), 0);
  Buffer out = std::move(Buffer::allocate(MemoryKind::kPinned, 64 * kLayout.page_bytes())).value();
  for (std::uint64_t round = 0; round < 20; ++round) {
    const auto record = record_of(4 * 64, round);
    ASSERT_TRUE(gpu.write(pages, *record).ok());
    ASSERT_TRUE(gpu.publish(engine.get()).ok());
    ASSERT_TRUE(copy_async(out.data(), gpu.page(0), out.size(), engine.get()).ok());
    const auto ticket = m.clock->mark(engine.get());
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(m.clock->wait(*ticket).ok());
    for (std::uint32_t i = 0; i < 64; ++i) {
      const auto page = expected_page(*record, i);
      ASSERT_TRUE(std::equal(page.begin(), page.end(), out.data() + i * page.size()))
          << "round " << round << " page " << i;
    }
  }
}

TEST(CudaClock, TicketsPassInTheirStreamsOrder) {
  INFERSCALE_NEEDS_DEVICE();
  const auto clock = std::move(CudaClock::create(4)).value();
  const Stream stream = std::move(Stream::create()).value();
  EXPECT_TRUE(clock->passed(0));
  EXPECT_FALSE(clock->passed(1)) << "never given";
  EXPECT_EQ(clock->wait(1).code(), StatusCode::kUnavailable);
  const std::size_t size = std::size_t{64} << 20;
  const Buffer big = std::move(Buffer::allocate(MemoryKind::kDevice, size)).value();
  std::vector<DeviceTicket> tickets;
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(zero_async(big.data(), size, stream.get()).ok());
    const auto ticket = clock->mark(stream.get());  // more of them than events at the start
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
  }
  ASSERT_TRUE(clock->wait(tickets.back()).ok());
  for (const DeviceTicket ticket : tickets) {
    EXPECT_TRUE(clock->passed(ticket));
    EXPECT_TRUE(clock->wait(ticket).ok());
  }
  const auto again = clock->mark(stream.get());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, tickets.back() + 1);
  EXPECT_FALSE(clock->passed(*again + 1)) << "never given";
}

}  // namespace
}  // namespace inferscale::cuda
