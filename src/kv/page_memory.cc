#include "kv/page_memory.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <cstring>
#include <limits>
#include <new>

namespace inferscale {
namespace {

constexpr std::align_val_t kAlignment{PageLayout::kPartAlignment};

}  // namespace

Status check_pages(const PageMemory& memory, std::span<const std::uint32_t> pages,
                   std::size_t expected) {
  if (pages.size() != expected) {
    return invalid_argument(fmt::format("{} pages: {} were given, {} are needed", memory.name(),
                                        pages.size(), expected));
  }
  for (const std::uint32_t page : pages) {
    if (page >= memory.n_pages()) {
      return invalid_argument(fmt::format("{} pages: there is no page {}, only 0..{}",
                                          memory.name(), page, memory.n_pages() - 1));
    }
  }
  return Status();
}

Result<std::unique_ptr<PlainPageMemory>> PlainPageMemory::create(std::string_view name,
                                                                 const PageLayout& layout,
                                                                 std::size_t n_pages) {
  INFERSCALE_RETURN_IF_ERROR(layout.validate().with_context("page layout"));
  if (n_pages < 1 || n_pages > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument(fmt::format("{} pages: {} is no number of pages", name, n_pages));
  }
  std::size_t bytes = 0;
  std::byte* data = nullptr;
  if (!__builtin_mul_overflow(n_pages, layout.page_bytes(), &bytes)) {
    data = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
  }
  if (data == nullptr) {
    return resource_exhausted(fmt::format("{} pages: not enough memory for {} of {} bytes", name,
                                          n_pages, layout.page_bytes()));
  }
  return std::unique_ptr<PlainPageMemory>(new PlainPageMemory(name, layout, n_pages, data));
}

PlainPageMemory::~PlainPageMemory() {
  wipe();
  ::operator delete(page(0), kAlignment);
}

HostPageMemory::HostPageMemory(std::string_view name, const PageLayout& layout, std::size_t n_pages,
                               std::byte* data)
    : name_(name), layout_(layout), n_pages_(n_pages), data_(data) {
  std::memset(data_, 0, n_pages_ * layout_.page_bytes());
}

void HostPageMemory::wipe() { OPENSSL_cleanse(data_, n_pages_ * layout_.page_bytes()); }

Status HostPageMemory::write(std::span<const std::uint32_t> pages, const Record& record) {
  INFERSCALE_RETURN_IF_ERROR(check_paged_record(layout_, record));
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, layout_.pages_for(record.n_tokens())));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    record_to_page(layout_, record, i, {page(pages[i]), layout_.page_bytes()});
  }
  return Status();
}

Result<DeviceTicket> HostPageMemory::copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, sources.size()));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::memcpy(page(pages[i]), sources[i], layout_.page_bytes());
  }
  return DeviceTicket{0};
}

Status HostPageMemory::zero(std::span<const std::uint32_t> pages) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, pages, pages.size()));
  for (const std::uint32_t index : pages) {
    OPENSSL_cleanse(page(index), layout_.page_bytes());
  }
  return Status();
}

Status HostPageMemory::read(std::uint32_t page_index, std::span<std::byte> out) {
  INFERSCALE_RETURN_IF_ERROR(check_pages(*this, {&page_index, 1}, 1));
  std::memcpy(out.data(), page(page_index), layout_.page_bytes());
  return Status();
}

}  // namespace inferscale
