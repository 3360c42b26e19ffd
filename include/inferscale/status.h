#pragma once

#include <cassert>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "inferscale/export.h"

namespace inferscale {

/// Canonical error codes. Their HTTP status, exit code and Python exception stand in one table
/// (`error_table()`, docs/errors.md). Values are stable: never renumber, only append.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,
  kUnauthenticated = 2,
  kPermissionDenied = 3,
  kNotFound = 4,
  kConflict = 5,
  kUnsupported = 6,
  kResourceExhausted = 7,
  kDataLoss = 8,
  kUnavailable = 9,
  kInternal = 10,
};

/// One row of the error table.
struct ErrorTableRow {
  StatusCode code;
  const char* name;              ///< as printed, e.g. "kNotFound"
  int http_status;               ///< e.g. 404
  int exit_code;                 ///< of the command line, e.g. 3
  const char* python_exception;  ///< e.g. "KeyError"
};

/// The whole table, kOk first, in the order of StatusCode. Static storage; thread-safe.
[[nodiscard]] INFERSCALE_API std::span<const ErrorTableRow> error_table();

/// The row of `code`. Unknown values give the row of kInternal.
[[nodiscard]] INFERSCALE_API const ErrorTableRow& error_row(StatusCode code);

/// The outcome of an operation: kOk, or a code with a message that says what happened, to what, and
/// what to do. A value type; const members are safe to call concurrently.
class [[nodiscard]] INFERSCALE_API Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  /// "kNotFound: no fact with id f_1" or "kOk".
  [[nodiscard]] std::string to_string() const;

  /// The same code with `context + ": "` before the message; kOk stays kOk.
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// Short constructors, one per code that library code returns.
[[nodiscard]] INFERSCALE_API Status invalid_argument(std::string message);
[[nodiscard]] INFERSCALE_API Status not_found(std::string message);
[[nodiscard]] INFERSCALE_API Status conflict(std::string message);
[[nodiscard]] INFERSCALE_API Status permission_denied(std::string message);
[[nodiscard]] INFERSCALE_API Status unsupported(std::string message);
[[nodiscard]] INFERSCALE_API Status resource_exhausted(std::string message);
[[nodiscard]] INFERSCALE_API Status data_loss(std::string message);
[[nodiscard]] INFERSCALE_API Status unavailable(std::string message);
[[nodiscard]] INFERSCALE_API Status internal_error(std::string message);

/// A value or the Status that says why there is none. Moves and copies like its content.
/// REQUIRES: a Result built from a Status holds an error (a kOk status becomes kInternal).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : content_(std::in_place_index<1>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : content_(std::in_place_index<0>, std::move(status)) {  // NOLINT
    if (std::get<0>(content_).ok()) {
      std::get<0>(content_) = Status(StatusCode::kInternal, "a Result was built from an ok Status");
    }
  }

  [[nodiscard]] bool ok() const { return content_.index() == 1; }
  /// kOk when there is a value.
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<0>(content_); }

  /// REQUIRES: ok().
  [[nodiscard]] T& value() & {
    assert(ok());
    return std::get<1>(content_);
  }
  [[nodiscard]] const T& value() const& {
    assert(ok());
    return std::get<1>(content_);
  }
  [[nodiscard]] T&& value() && {
    assert(ok());
    return std::get<1>(std::move(content_));
  }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T&& operator*() && { return std::move(*this).value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> content_;
};

}  // namespace inferscale

#define INFERSCALE_CONCAT_INNER(a, b) a##b
#define INFERSCALE_CONCAT(a, b) INFERSCALE_CONCAT_INNER(a, b)

/// Returns the error from the enclosing function when `expression` (a Status) is not ok.
#define INFERSCALE_RETURN_IF_ERROR(expression)                        \
  do {                                                                \
    if (::inferscale::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                 \
    }                                                                 \
  } while (false)

/// Declares or assigns `target` from `expression` (a Result), or returns its Status.
#define INFERSCALE_ASSIGN_OR_RETURN(target, expression) \
  INFERSCALE_ASSIGN_OR_RETURN_INNER(INFERSCALE_CONCAT(result_, __LINE__), target, expression)
#define INFERSCALE_ASSIGN_OR_RETURN_INNER(name, target, expression) \
  auto name = (expression);                                         \
  if (!name.ok()) {                                                 \
    return name.status();                                           \
  }                                                                 \
  target = std::move(name).value()
