#include "kv/cuda/page_memory_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace inferscale {
namespace {

// Whatever the runtime says, for the user of pages the device is gone.
Status device_failed(const Status& status) {
  return status.ok() ? status : unavailable(status.message());
}

Status check_arena(const PageLayout& layout, std::size_t n_pages) {
  INFERSCALE_RETURN_IF_ERROR(layout.validate().with_context("page layout"));
  std::size_t bytes = 0;
  if (n_pages < 1 || n_pages > std::numeric_limits<std::uint32_t>::max() ||
      __builtin_mul_overflow(n_pages, layout.page_bytes(), &bytes)) {
    return invalid_argument(fmt::format("{} is no number of pages", n_pages));
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<CudaClock>> CudaClock::create(std::size_t marks) {
  const std::shared_ptr<CudaClock> clock(new CudaClock);
  INFERSCALE_ASSIGN_OR_RETURN(clock->device_, cuda::current_device());
  for (std::size_t i = 0; i < marks; ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::create());
    clock->spare_.push_back(std::make_shared<cuda::Event>(std::move(event)));
  }
  return clock;
}

bool CudaClock::passed_locked(DeviceTicket ticket) {
  if (failed_ || ticket >= first_ + marks_.size()) {
    return false;
  }
  if (ticket < first_) {
    return true;
  }
  Mark& mark = marks_[ticket - first_];
  if (!mark.passed) {
    const Result<bool> passed = mark.event->passed();
    failed_ = !passed.ok();
    mark.passed = passed.ok() && *passed;
  }
  return mark.passed;
}

// The oldest tickets that have passed: their events serve others, unless somebody waits for them.
void CudaClock::forget_passed() {
  while (!marks_.empty() && passed_locked(first_)) {
    if (marks_.front().event.use_count() == 1) {
      spare_.push_back(std::move(marks_.front().event));
    }
    marks_.pop_front();
    ++first_;
  }
}

Result<DeviceTicket> CudaClock::mark(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(device_);
  forget_passed();
  if (failed_) {
    return unavailable("the CUDA device failed");
  }
  if (spare_.empty()) {
    Result<cuda::Event> event = cuda::Event::create();
    INFERSCALE_RETURN_IF_ERROR(device_failed(event.status()));
    spare_.push_back(std::make_shared<cuda::Event>(std::move(*event)));
  }
  if (const Status recorded = spare_.back()->record(stream); !recorded.ok()) {
    failed_ = true;
    return device_failed(recorded);
  }
  marks_.push_back({std::move(spare_.back()), false});
  spare_.pop_back();
  return first_ + marks_.size() - 1;
}

bool CudaClock::passed(DeviceTicket ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(device_);
  return passed_locked(ticket);
}

Status CudaClock::wait(DeviceTicket ticket) {
  std::shared_ptr<cuda::Event> event;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (passed_locked(ticket)) {
      return Status();
    }
    if (failed_ || ticket >= first_ + marks_.size()) {
      return unavailable(failed_ ? "the CUDA device failed" : "no such ticket");
    }
    event = marks_[ticket - first_].event;
  }
  const Status waited = event->wait();  // without the lock, so that others may mark meanwhile
  if (!waited.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_ = true;
  }
  return device_failed(waited);
}

Result<std::unique_ptr<CudaPageMemory>> CudaPageMemory::create(std::shared_ptr<CudaClock> clock,
                                                               const PageLayout& layout,
                                                               std::size_t n_pages,
                                                               const Options& options) {
  INFERSCALE_RETURN_IF_ERROR(check_arena(layout, n_pages));
  INFERSCALE_RETURN_IF_ERROR(check_arena(layout, options.staging_pages));
  std::unique_ptr<CudaPageMemory> self(new CudaPageMemory);
  const cuda::DeviceScope scope(clock->device());
  const std::size_t page_bytes = layout.page_bytes();
  using cuda::Buffer;
  using cuda::MemoryKind;
  INFERSCALE_ASSIGN_OR_RETURN(self->arena_,
                              Buffer::allocate(MemoryKind::kDevice, n_pages * page_bytes));
  self->clock_ = std::move(clock);
  INFERSCALE_ASSIGN_OR_RETURN(
      self->staging_, Buffer::allocate(MemoryKind::kPinned, options.staging_pages * page_bytes));
  self->layout_ = layout;
  self->n_pages_ = n_pages;
  self->staging_pages_ = options.staging_pages;
  for (std::size_t i = 0; i < options.staging_pages; ++i) {  // a part has a page at least
    INFERSCALE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::create());
    self->part_events_.push_back(std::move(event));
  }
  INFERSCALE_ASSIGN_OR_RETURN(self->written_, cuda::Event::create());
  INFERSCALE_ASSIGN_OR_RETURN(self->stream_, cuda::Stream::create());
  INFERSCALE_RETURN_IF_ERROR(
      cuda::zero_async(self->arena_.data(), self->arena_.size(), self->stream_.get()));
  INFERSCALE_RETURN_IF_ERROR(self->stream_.synchronize());
  return self;
}

CudaPageMemory::~CudaPageMemory() {
  if (arena_.data() == nullptr || clock_ == nullptr) {
    return;
  }
  const cuda::DeviceScope scope(clock_->device());
  (void)cuda::zero_async(arena_.data(), arena_.size(), stream_.get());
  (void)stream_.synchronize();
  std::memset(staging_.data(), 0, staging_.size());
}

std::size_t CudaPageMemory::free_staging() const {
  return staging_pages_ - static_cast<std::size_t>(staged_ - reclaimed_);
}

// Takes back what has been copied; with `wait` at least the oldest part.
Status CudaPageMemory::reclaim(bool wait) {
  while (!parts_.empty()) {
    const Part& oldest = parts_.front();
    if (wait) {
      INFERSCALE_RETURN_IF_ERROR(part_events_[oldest.event].wait());
      wait = false;
    } else {
      INFERSCALE_ASSIGN_OR_RETURN(const bool done, part_events_[oldest.event].passed());
      if (!done) {
        break;
      }
    }
    reclaimed_ = oldest.end;
    parts_.pop_front();
  }
  return Status();
}

// Pages first .. of the record, as many as `pages` has.
Status CudaPageMemory::stage(std::span<const std::uint32_t> pages, const Record& record,
                             std::size_t first) {
  const std::size_t page_bytes = layout_.page_bytes();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::byte* staged = staging_.data() + staged_ % staging_pages_ * page_bytes;
    ++staged_;
    record_to_page(layout_, record, first + i, {staged, page_bytes});
    INFERSCALE_RETURN_IF_ERROR(cuda::copy_async(page(pages[i]), staged, page_bytes, stream_.get()));
  }
  next_event_ = (next_event_ + 1) % part_events_.size();
  INFERSCALE_RETURN_IF_ERROR(part_events_[next_event_].record(stream_.get()));
  parts_.push_back({staged_, next_event_});
  return changed();
}

Status CudaPageMemory::changed() { return written_.record(stream_.get()); }

Status CudaPageMemory::write(std::span<const std::uint32_t> pages, const Record& record) {
  INFERSCALE_RETURN_IF_ERROR(check_paged_record(layout_, record));
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, layout_.pages_for(record.n_tokens())));
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(clock_->device());
  INFERSCALE_RETURN_IF_ERROR(device_failed(reclaim(false)));
  if (free_staging() < std::min(pages.size(), staging_pages_)) {
    return resource_exhausted(fmt::format("gpu pages: {} staging pages are free, {} are needed",
                                          free_staging(), pages.size()));
  }
  for (std::size_t first = 0; first < pages.size(); first += staging_pages_) {
    const std::size_t n = std::min(staging_pages_, pages.size() - first);
    while (free_staging() < n) {
      INFERSCALE_RETURN_IF_ERROR(device_failed(reclaim(true)));
    }
    INFERSCALE_RETURN_IF_ERROR(device_failed(stage(pages.subspan(first, n), record, first)));
  }
  return Status();
}

Result<DeviceTicket> CudaPageMemory::copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, sources.size()));
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(clock_->device());
  Status status;
  for (std::size_t i = 0; i < pages.size() && status.ok(); ++i) {
    status = cuda::copy_async(page(pages[i]), sources[i], layout_.page_bytes(), stream_.get());
  }
  if (status.ok()) {
    status = changed();
  }
  Result<DeviceTicket> ticket = status.ok() ? clock_->mark(stream_.get()) : status;
  if (!ticket.ok()) {
    (void)stream_.synchronize();  // nothing may read the sources any more
    return device_failed(ticket.status());
  }
  return ticket;
}

Status CudaPageMemory::zero(std::span<const std::uint32_t> pages) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, pages.size()));
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(clock_->device());
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t end = i + 1;  // pages that follow each other in one call
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) {
      ++end;
    }
    INFERSCALE_RETURN_IF_ERROR(device_failed(
        cuda::zero_async(page(pages[i]), (end - i) * layout_.page_bytes(), stream_.get())));
    i = end;
  }
  return device_failed(changed());
}

Status CudaPageMemory::publish(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::DeviceScope scope(clock_->device());
  Result<bool> done = written_.passed();
  INFERSCALE_RETURN_IF_ERROR(device_failed(done.status()));
  return *done ? Status() : device_failed(written_.hold(stream));
}

Status CudaPageMemory::settle() {
  const cuda::DeviceScope scope(clock_->device());
  INFERSCALE_RETURN_IF_ERROR(device_failed(stream_.synchronize()));  // most of it, without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  INFERSCALE_RETURN_IF_ERROR(device_failed(stream_.synchronize()));
  INFERSCALE_RETURN_IF_ERROR(device_failed(reclaim(false)));
  explicit_bzero(staging_.data(), staging_.size());
  return Status();
}

Status CudaPageMemory::read(std::uint32_t page_index, std::span<std::byte> out) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, {&page_index, 1}, 1));
  const cuda::DeviceScope scope(clock_->device());
  INFERSCALE_RETURN_IF_ERROR(device_failed(
      cuda::copy_async(out.data(), page(page_index), layout_.page_bytes(), stream_.get())));
  return device_failed(stream_.synchronize());
}

Result<std::unique_ptr<PinnedPageMemory>> PinnedPageMemory::create(const PageLayout& layout,
                                                                   std::size_t n_pages) {
  INFERSCALE_RETURN_IF_ERROR(check_arena(layout, n_pages));
  INFERSCALE_ASSIGN_OR_RETURN(
      cuda::Buffer arena,
      cuda::Buffer::allocate(cuda::MemoryKind::kPinned, n_pages * layout.page_bytes()));
  return std::unique_ptr<PinnedPageMemory>(new PinnedPageMemory(layout, n_pages, std::move(arena)));
}

}  // namespace inferscale
