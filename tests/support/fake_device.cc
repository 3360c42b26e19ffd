#include "support/fake_device.h"

#include <algorithm>
#include <cstring>

namespace inferscale::testing {

Result<DeviceTicket> FakeClock::mark(void* stream) {
  const std::lock_guard lock(mutex_);
  if (dead) {
    return unavailable("the fake device is dead");
  }
  if (exhausted) {
    return resource_exhausted("too many marks are open");
  }
  if (immediate) {
    std::erase_if(open_, [&](const Work& work) { return work.stream == stream; });
    return DeviceTicket{0};
  }
  ++last_;
  pending_.emplace(last_, stream);
  for (Work& work : open_) {
    if (work.stream == stream && work.ticket == 0) {
      work.ticket = last_;
    }
  }
  return last_;
}

bool FakeClock::passed(DeviceTicket ticket) {
  const std::lock_guard lock(mutex_);
  return !dead && !pending_.contains(ticket);
}

Status FakeClock::wait(DeviceTicket ticket) {
  ++waits;
  std::unique_lock lock(mutex_);
  if (dead) {
    return unavailable("the fake device is dead");
  }
  if (blocking) {
    finished_.wait(lock, [&] { return dead || !pending_.contains(ticket); });
  }
  const auto found = pending_.find(ticket);
  if (found == pending_.end()) {
    return Status();
  }
  void* const stream = found->second;
  const auto done = [&](DeviceTicket other, void* on) { return on == stream && other <= ticket; };
  std::erase_if(
      open_, [&](const Work& work) { return work.ticket != 0 && done(work.ticket, work.stream); });
  std::erase_if(pending_, [&](const auto& each) { return done(each.first, each.second); });
  return Status();
}

void FakeClock::read(void* stream, std::span<const std::byte* const> addresses) {
  const std::lock_guard lock(mutex_);
  open_.push_back({stream, {addresses.begin(), addresses.end()}, 0});
}

void FakeClock::finish(void* stream) {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [&](const Work& work) { return work.stream == stream; });
  std::erase_if(pending_, [&](const auto& each) { return each.second == stream; });
  finished_.notify_all();
}

bool FakeClock::reads(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(open_.begin(), open_.end(), [&](const Work& work) {
    return std::find(work.addresses.begin(), work.addresses.end(), address) != work.addresses.end();
  });
}

void FakePageMemory::check_unread(std::span<const std::uint32_t> pages) {
  for (const std::uint32_t each : pages) {
    violations += clock_->reads(page(each)) ? 1 : 0;
  }
}

Status FakePageMemory::write(std::span<const std::uint32_t> pages, const Record& record) {
  if (no_staging.exchange(false)) {
    return resource_exhausted("no staging memory");
  }
  check_unread(pages);
  if (fail_write.exchange(false)) {
    record_to_page(layout(), record, 0, {page(pages[0]), layout().page_bytes()});
    return unavailable("the write failed");
  }
  return memory_->write(pages, record);
}

Result<DeviceTicket> FakePageMemory::copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) {
  check_unread(pages);
  if (fail_copy.exchange(false)) {
    std::memcpy(page(pages[0]), sources[0], layout().page_bytes());
    return unavailable("the copy failed");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const DeviceTicket done, memory_->copy(pages, sources));
  if (!slow_copies) {
    return done;
  }
  clock_->read(copy_stream(), sources);
  return clock_->mark(copy_stream());
}

Status FakePageMemory::zero(std::span<const std::uint32_t> pages) {
  check_unread(pages);
  return fail_zero ? unavailable("zeroing failed") : memory_->zero(pages);
}

Status FakePageMemory::publish(void* /*stream*/) {
  ++publishes;
  return fail_publish.exchange(false) ? unavailable("an earlier write failed") : Status();
}

Status FakePageMemory::settle() {
  clock_->exhausted = false;
  return fail_settle.exchange(false) ? unavailable("an earlier write failed") : Status();
}

bool FakePageMemory::is_zero(std::uint32_t page_index) const {
  const std::span bytes(page(page_index), layout().page_bytes());
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

std::shared_ptr<FakePageMemory> make_fake_memory(std::string_view name, const PageLayout& layout,
                                                 std::size_t n_pages,
                                                 const std::shared_ptr<FakeClock>& clock) {
  auto memory = PlainPageMemory::create(name, layout, n_pages);
  return memory.ok() ? std::make_shared<FakePageMemory>(std::move(memory).value(), clock) : nullptr;
}

FakeDevice::FakeDevice(const PageLayout& layout, std::size_t gpu_pages, std::size_t pinned_pages)
    : gpu_memory(make_fake_memory("gpu", layout, gpu_pages, streams)),
      pinned_memory(make_fake_memory("pinned", layout, pinned_pages, streams)) {}

}  // namespace inferscale::testing
