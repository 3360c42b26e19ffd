#include "inferscale/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace inferscale {
namespace {

struct Expected {
  StatusCode code;
  const char* name;
  int http;
  int exit;
  const char* python;
};

// ARCHITECTURE.md, the table of errors.
constexpr Expected kExpected[] = {
    {StatusCode::kOk, "kOk", 200, 0, ""},
    {StatusCode::kInvalidArgument, "kInvalidArgument", 400, 2, "ValueError"},
    {StatusCode::kUnauthenticated, "kUnauthenticated", 401, 7, "PermissionError"},
    {StatusCode::kPermissionDenied, "kPermissionDenied", 403, 7, "PermissionError"},
    {StatusCode::kNotFound, "kNotFound", 404, 3, "KeyError"},
    {StatusCode::kConflict, "kConflict", 409, 8, "inferscale.ConflictError"},
    {StatusCode::kUnsupported, "kUnsupported", 422, 9, "NotImplementedError"},
    {StatusCode::kResourceExhausted, "kResourceExhausted", 507, 4, "MemoryError"},
    {StatusCode::kDataLoss, "kDataLoss", 500, 5, "inferscale.CorruptionError"},
    {StatusCode::kUnavailable, "kUnavailable", 503, 6, "inferscale.RetryError"},
    {StatusCode::kInternal, "kInternal", 500, 1, "RuntimeError"},
};

TEST(ErrorTableTest, IsComplete) {
  ASSERT_EQ(error_table().size(), std::size(kExpected));
  for (std::size_t i = 0; i < std::size(kExpected); ++i) {
    const ErrorTableRow& row = error_row(kExpected[i].code);
    EXPECT_EQ(&row, &error_table()[i]);
    EXPECT_STREQ(row.name, kExpected[i].name);
    EXPECT_EQ(row.http_status, kExpected[i].http);
    EXPECT_EQ(row.exit_code, kExpected[i].exit);
    EXPECT_STREQ(row.python_exception, kExpected[i].python);
  }
}

TEST(ErrorTableTest, UnknownCodesAreInternal) {
  EXPECT_EQ(error_row(static_cast<StatusCode>(99)).code, StatusCode::kInternal);
  EXPECT_EQ(error_row(static_cast<StatusCode>(-1)).code, StatusCode::kInternal);
}

TEST(StatusTest, SaysCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().to_string(), "kOk");
  EXPECT_EQ(not_found("no fact with id f_1").to_string(), "kNotFound: no fact with id f_1");
  EXPECT_EQ(not_found("").to_string(), "kNotFound");
}

TEST(StatusTest, ContextKeepsTheCode) {
  const Status status = conflict("locked").with_context("data directory");
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_EQ(status.message(), "data directory: locked");
  EXPECT_TRUE(Status().with_context("anything").ok());
}

TEST(StatusTest, ShortConstructorsGiveTheirCode) {
  EXPECT_EQ(invalid_argument("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(not_found("").code(), StatusCode::kNotFound);
  EXPECT_EQ(conflict("").code(), StatusCode::kConflict);
  EXPECT_EQ(permission_denied("").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(unsupported("").code(), StatusCode::kUnsupported);
  EXPECT_EQ(resource_exhausted("").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(data_loss("").code(), StatusCode::kDataLoss);
  EXPECT_EQ(unavailable("").code(), StatusCode::kUnavailable);
  EXPECT_EQ(internal_error("").code(), StatusCode::kInternal);
}

Result<std::unique_ptr<int>> half(int value) {
  if (value % 2 != 0) {
    return invalid_argument("odd");
  }
  return std::make_unique<int>(value / 2);
}

Result<int> quarter(int value) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, half(value));
  INFERSCALE_ASSIGN_OR_RETURN(auto second, half(*first));
  return *second;
}

Status check_quarter(int value) {
  INFERSCALE_RETURN_IF_ERROR(quarter(value).status());
  return Status();
}

TEST(ResultTest, CarriesValuesAndErrorsThroughTheMacros) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_TRUE(quarter(8).status().ok());
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_EQ(check_quarter(7).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_quarter(4).ok());
}

TEST(ResultTest, AnOkStatusIsNoResult) {
  const Result<int> result{Status()};
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace inferscale
