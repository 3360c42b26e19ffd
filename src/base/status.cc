#include "inferscale/status.h"

#include <array>
#include <cstddef>

namespace inferscale {
namespace {

constexpr std::array<ErrorTableRow, 11> kErrorTable{{
    {StatusCode::kOk, "kOk", 200, 0, ""},
    {StatusCode::kInvalidArgument, "kInvalidArgument", 400, 2, "ValueError"},
    {StatusCode::kUnauthenticated, "kUnauthenticated", 401, 7, "PermissionError"},
    {StatusCode::kPermissionDenied, "kPermissionDenied", 403, 7, "PermissionError"},
    {StatusCode::kNotFound, "kNotFound", 404, 3, "KeyError"},
    {StatusCode::kConflict, "kConflict", 409, 8, "inferscale.ConflictError"},
    {StatusCode::kUnsupported, "kUnsupported", 422, 9, "NotImplementedError"},
    // A full queue answers 429 instead: only the server knows which of the two it was.
    {StatusCode::kResourceExhausted, "kResourceExhausted", 507, 4, "MemoryError"},
    {StatusCode::kDataLoss, "kDataLoss", 500, 5, "inferscale.CorruptionError"},
    {StatusCode::kUnavailable, "kUnavailable", 503, 6, "inferscale.RetryError"},
    {StatusCode::kInternal, "kInternal", 500, 1, "RuntimeError"},
}};

constexpr bool table_is_in_code_order() {
  for (std::size_t i = 0; i < kErrorTable.size(); ++i) {
    if (static_cast<std::size_t>(kErrorTable[i].code) != i) {
      return false;
    }
  }
  return true;
}
static_assert(table_is_in_code_order(), "error_row() indexes the table by code");

}  // namespace

std::span<const ErrorTableRow> error_table() { return kErrorTable; }

const ErrorTableRow& error_row(StatusCode code) {
  const auto index = static_cast<std::size_t>(code);  // negative values become large ones
  return index < kErrorTable.size() ? kErrorTable[index] : kErrorTable.back();
}

std::string Status::to_string() const {
  std::string text = error_row(code_).name;
  if (!ok() && !message_.empty()) {
    text += ": ";
    text += message_;
  }
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) {
    return *this;
  }
  std::string message(context);
  message += ": ";
  message += message_;
  return Status(code_, std::move(message));
}

Status invalid_argument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
Status not_found(std::string message) { return Status(StatusCode::kNotFound, std::move(message)); }
Status conflict(std::string message) { return Status(StatusCode::kConflict, std::move(message)); }
Status permission_denied(std::string message) {
  return Status(StatusCode::kPermissionDenied, std::move(message));
}
Status unsupported(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}
Status resource_exhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
Status data_loss(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }
Status unavailable(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}
Status internal_error(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

}  // namespace inferscale
