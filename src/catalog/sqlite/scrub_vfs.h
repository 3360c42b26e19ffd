#pragma once

#include <cstddef>
#include <span>

namespace inferscale::sqlite {

/// The page size of every catalog file, which the scrubbing depends on.
inline constexpr int kPageBytes = 4096;
/// Up to here the first byte of a page tells b-tree pages from all others (64 GiB of pages).
inline constexpr long kMaxPages = (1L << 24) - 1;

/// Zeroes what a b-tree page holds but does not use: the gap between cell pointers and cells, and
/// free blocks. Other pages, and pages that do not look right, are left as they are.
/// REQUIRES: `page` has kPageBytes and is a page of a database of at most kMaxPages.
void scrub_page(std::span<std::byte> page, bool first_page);

/// Registers (once) and names a VFS that is the operating system's, except that pages are scrubbed
/// on their way into the database file. `secure_delete` alone is not enough: when SQLite moves rows
/// to another page, it leaves copies of them in the unused part of the old one, where no later
/// delete finds them. Null when SQLite has no VFS.
[[nodiscard]] const char* scrubbing_vfs();

}  // namespace inferscale::sqlite
