#pragma once

#include <sys/types.h>

#include <filesystem>

#include "inferscale/status.h"

/// What file.cc and posix_file_system.cc share of the operating system's file calls.
namespace inferscale::posix {

/// Closes a descriptor when it goes out of scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] bool valid() const { return value_ >= 0; }
  [[nodiscard]] int release();

 private:
  int value_;
};

/// "cannot <action> <path>: <reason>" for an errno: kNotFound, kResourceExhausted (no space) or
/// kUnavailable.
[[nodiscard]] Status failed(const char* action, const std::filesystem::path& path, int error);

/// Errors: kInvalidArgument (empty, or with a zero byte, at which the C interface would silently
/// end the path).
[[nodiscard]] Status check_path(const std::filesystem::path& path);

/// open(2) with O_CLOEXEC, again when a signal interrupts it.
[[nodiscard]] int open_retrying(const std::filesystem::path& path, int flags, mode_t mode = 0);

}  // namespace inferscale::posix
