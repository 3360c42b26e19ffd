#include "catalog/sqlite/scrub_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace inferscale::sqlite {
namespace {

constexpr const char* kVfsName = "inferscale-scrub";
constexpr std::size_t kFileHeaderBytes = 100;  // in front of the first page's own header

std::size_t read_u16(std::span<const std::byte> page, std::size_t at) {
  return std::to_integer<std::size_t>(page[at]) << 8 | std::to_integer<std::size_t>(page[at + 1]);
}

void zero(std::span<std::byte> page, std::size_t begin, std::size_t end) {
  std::fill(page.begin() + static_cast<std::ptrdiff_t>(begin),
            page.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0});
}

/// Each free block starts with the offset of the next and its own size; offsets grow.
void scrub_free_blocks(std::span<std::byte> page, std::size_t block) {
  std::size_t least = 0;
  while (block > least && block + 4 <= page.size()) {
    const std::size_t next = read_u16(page, block);
    const std::size_t size = read_u16(page, block + 2);
    if (size < 4 || block + size > page.size()) {
      return;
    }
    zero(page, block + 4, block + size);
    least = block;
    block = next;
  }
}

/// A file of this VFS: the methods that SQLite calls, and the operating system's file behind them,
/// which lies in memory directly after this structure.
struct File {
  sqlite3_file base;
};

sqlite3_file* inner(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}

sqlite3_vfs* system_vfs() {
  static sqlite3_vfs* const kVfs = sqlite3_vfs_find(nullptr);
  return kVfs;
}

int write_scrubbed(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
  if (size != kPageBytes || offset % kPageBytes != 0) {
    return inner(file)->pMethods->xWrite(inner(file), data, size, offset);
  }
  std::array<std::byte, kPageBytes> page;
  std::memcpy(page.data(), data, page.size());
  scrub_page(page, offset == 0);
  return inner(file)->pMethods->xWrite(inner(file), page.data(), size, offset);
}

int close(sqlite3_file* file) {
  const int rc = inner(file)->pMethods->xClose(inner(file));
  file->pMethods = nullptr;
  return rc;
}

/// Everything but xWrite and xClose goes to the inner file unchanged.
sqlite3_io_methods make_methods() {
  sqlite3_io_methods m{};
  m.iVersion = 2;  // with shared memory (WAL), without memory-mapped reads
  m.xClose = close;
  m.xWrite = write_scrubbed;
  m.xRead = [](sqlite3_file* f, void* data, int size, sqlite3_int64 offset) {
    return inner(f)->pMethods->xRead(inner(f), data, size, offset);
  };
  m.xTruncate = [](sqlite3_file* f, sqlite3_int64 size) {
    return inner(f)->pMethods->xTruncate(inner(f), size);
  };
  m.xSync = [](sqlite3_file* f, int flags) { return inner(f)->pMethods->xSync(inner(f), flags); };
  m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
    return inner(f)->pMethods->xFileSize(inner(f), size);
  };
  m.xLock = [](sqlite3_file* f, int level) { return inner(f)->pMethods->xLock(inner(f), level); };
  m.xUnlock = [](sqlite3_file* f, int level) {
    return inner(f)->pMethods->xUnlock(inner(f), level);
  };
  m.xCheckReservedLock = [](sqlite3_file* f, int* out) {
    return inner(f)->pMethods->xCheckReservedLock(inner(f), out);
  };
  m.xFileControl = [](sqlite3_file* f, int op, void* argument) {
    return inner(f)->pMethods->xFileControl(inner(f), op, argument);
  };
  m.xSectorSize = [](sqlite3_file* f) { return inner(f)->pMethods->xSectorSize(inner(f)); };
  m.xDeviceCharacteristics = [](sqlite3_file* f) {
    return inner(f)->pMethods->xDeviceCharacteristics(inner(f));
  };
  m.xShmMap = [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
    return inner(f)->pMethods->xShmMap(inner(f), page, size, extend, out);
  };
  m.xShmLock = [](sqlite3_file* f, int offset, int n, int flags) {
    return inner(f)->pMethods->xShmLock(inner(f), offset, n, flags);
  };
  m.xShmBarrier = [](sqlite3_file* f) { inner(f)->pMethods->xShmBarrier(inner(f)); };
  m.xShmUnmap = [](sqlite3_file* f, int remove) {
    return inner(f)->pMethods->xShmUnmap(inner(f), remove);
  };
  return m;
}

int open(sqlite3_vfs* /*vfs*/, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  sqlite3_vfs* const system = system_vfs();
  if ((flags & SQLITE_OPEN_MAIN_DB) == 0) {  // logs and temporary files: there is room for them too
    return system->xOpen(system, name, file, flags, out_flags);
  }
  static const sqlite3_io_methods kMethods = make_methods();
  file->pMethods = nullptr;
  const int rc = system->xOpen(system, name, inner(file), flags, out_flags);
  if (rc == SQLITE_OK) {
    file->pMethods = &kMethods;
  } else if (inner(file)->pMethods != nullptr) {  // SQLite asks for a close even after an error
    inner(file)->pMethods->xClose(inner(file));
  }
  return rc;
}

/// A copy of the system's VFS, its data included, so that its other functions work for this one.
sqlite3_vfs* make_vfs() {
  if (system_vfs() == nullptr) {
    return nullptr;
  }
  static sqlite3_vfs vfs = *system_vfs();
  vfs.pNext = nullptr;
  vfs.zName = kVfsName;
  vfs.szOsFile = static_cast<int>(sizeof(File)) + system_vfs()->szOsFile;
  vfs.xOpen = open;
  return sqlite3_vfs_register(&vfs, 0) == SQLITE_OK ? &vfs : nullptr;
}

}  // namespace

void scrub_page(std::span<std::byte> page, bool first_page) {
  const std::size_t header = first_page ? kFileHeaderBytes : 0;
  const auto type = std::to_integer<unsigned>(page[header]);
  const bool leaf = type == 10 || type == 13;
  if (!leaf && type != 2 && type != 5) {
    return;  // overflow and free-list pages start with the high byte of a page number: zero
  }
  const std::size_t pointers_end = header + (leaf ? 8 : 12) + 2 * read_u16(page, header + 3);
  const std::size_t cells_begin = read_u16(page, header + 5);
  if (pointers_end > cells_begin || cells_begin > page.size()) {
    return;
  }
  zero(page, pointers_end, cells_begin);
  scrub_free_blocks(page, read_u16(page, header + 1));
}

const char* scrubbing_vfs() {
  static const sqlite3_vfs* const kVfs = make_vfs();
  return kVfs == nullptr ? nullptr : kVfs->zName;
}

}  // namespace inferscale::sqlite
