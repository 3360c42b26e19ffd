#include "support/faulty_sqlite_vfs.h"

#include <sqlite3.h>

namespace inferscale::testing {
namespace {

FaultInjector* injector = nullptr;
sqlite3_vfs* system_vfs = nullptr;

/// SQLite's structure, and directly behind it in memory the operating system's file.
struct File {
  sqlite3_file base;
};

sqlite3_file* inner(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}

int code_of(Fault fault, int otherwise) {
  if (fault == Fault::kNone) {
    return SQLITE_OK;
  }
  return fault == Fault::kNoSpace || fault == Fault::kShort ? SQLITE_FULL : otherwise;
}

int close(sqlite3_file* file) {
  const int rc = inner(file)->pMethods->xClose(inner(file));
  file->pMethods = nullptr;
  return rc;
}

int read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) {
  // A read that is too short is no fault of a disk to SQLite: it is how it finds the end of a file.
  if (injector->next(Step::kRead) != Fault::kNone) {
    return SQLITE_IOERR_READ;
  }
  return inner(file)->pMethods->xRead(inner(file), data, size, offset);
}

int write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
  const Fault fault = injector->next(Step::kWrite);
  if (fault == Fault::kShort || fault == Fault::kKillShort) {
    (void)inner(file)->pMethods->xWrite(inner(file), data, size / 2, offset);
  }
  if (fault == Fault::kKillShort) {
    FaultInjector::kill_process();
  }
  const int rc = code_of(fault, SQLITE_IOERR_WRITE);
  return rc != SQLITE_OK ? rc : inner(file)->pMethods->xWrite(inner(file), data, size, offset);
}

int truncate(sqlite3_file* file, sqlite3_int64 size) {
  const int rc = code_of(injector->next(Step::kTruncate), SQLITE_IOERR_TRUNCATE);
  return rc != SQLITE_OK ? rc : inner(file)->pMethods->xTruncate(inner(file), size);
}

int sync(sqlite3_file* file, int flags) {
  const int rc = code_of(injector->next(Step::kSync), SQLITE_IOERR_FSYNC);
  return rc != SQLITE_OK ? rc : inner(file)->pMethods->xSync(inner(file), flags);
}

int remove(sqlite3_vfs*, const char* name, int sync_directory) {
  const int rc = code_of(injector->next(Step::kRemove), SQLITE_IOERR_DELETE);
  return rc != SQLITE_OK ? rc : system_vfs->xDelete(system_vfs, name, sync_directory);
}

/// The other methods go to the inner file unchanged.
void forward_locks_and_memory(sqlite3_io_methods* m) {
  m->xLock = [](sqlite3_file* f, int level) { return inner(f)->pMethods->xLock(inner(f), level); };
  m->xUnlock = [](sqlite3_file* f, int level) {
    return inner(f)->pMethods->xUnlock(inner(f), level);
  };
  m->xCheckReservedLock = [](sqlite3_file* f, int* out) {
    return inner(f)->pMethods->xCheckReservedLock(inner(f), out);
  };
  m->xShmMap = [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
    return inner(f)->pMethods->xShmMap(inner(f), page, size, extend, out);
  };
  m->xShmLock = [](sqlite3_file* f, int offset, int n, int flags) {
    return inner(f)->pMethods->xShmLock(inner(f), offset, n, flags);
  };
  m->xShmBarrier = [](sqlite3_file* f) { inner(f)->pMethods->xShmBarrier(inner(f)); };
  m->xShmUnmap = [](sqlite3_file* f, int remove_it) {
    return inner(f)->pMethods->xShmUnmap(inner(f), remove_it);
  };
}

sqlite3_io_methods make_methods() {
  sqlite3_io_methods m{};
  m.iVersion = 2;  // with shared memory, without memory-mapped reads
  m.xClose = close;
  m.xRead = read;
  m.xWrite = write;
  m.xTruncate = truncate;
  m.xSync = sync;
  m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
    return inner(f)->pMethods->xFileSize(inner(f), size);
  };
  m.xFileControl = [](sqlite3_file* f, int op, void* argument) {
    return inner(f)->pMethods->xFileControl(inner(f), op, argument);
  };
  m.xSectorSize = [](sqlite3_file* f) { return inner(f)->pMethods->xSectorSize(inner(f)); };
  m.xDeviceCharacteristics = [](sqlite3_file* f) {
    return inner(f)->pMethods->xDeviceCharacteristics(inner(f));
  };
  forward_locks_and_memory(&m);
  return m;
}

int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  static const sqlite3_io_methods kMethods = make_methods();
  file->pMethods = nullptr;
  const int rc = system_vfs->xOpen(system_vfs, name, inner(file), flags, out_flags);
  if (rc == SQLITE_OK) {
    file->pMethods = &kMethods;
  } else if (inner(file)->pMethods != nullptr) {  // SQLite asks for a close even after an error
    inner(file)->pMethods->xClose(inner(file));
  }
  return rc;
}

}  // namespace

void install_faulty_sqlite_vfs(FaultInjector& faults) {
  injector = &faults;
  system_vfs = sqlite3_vfs_find(nullptr);
  static sqlite3_vfs vfs = *system_vfs;
  vfs.pNext = nullptr;
  vfs.zName = "inferscale-faulty";
  vfs.szOsFile = static_cast<int>(sizeof(File)) + system_vfs->szOsFile;
  vfs.xOpen = open;
  vfs.xDelete = remove;
  (void)sqlite3_vfs_register(&vfs, 1);
}

}  // namespace inferscale::testing
