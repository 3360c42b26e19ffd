#include "base/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::int64_t kUsPerSecond = 1'000'000;
constexpr std::int64_t kUsPerMinute = 60 * kUsPerSecond;
constexpr std::int64_t kUsPerDay = std::int64_t{24} * 60 * kUsPerMinute;
constexpr TimestampUs kFirst = -62'135'596'800 * kUsPerSecond;     // 0001-01-01T00:00:00Z
constexpr TimestampUs kLast = 253'402'300'800 * kUsPerSecond - 1;  // 9999-12-31T23:59:59.999999Z
constexpr int kMaxOffsetMinutes = 24 * 60 - 1;

Status bad_time(std::string_view text) {
  return invalid_argument(
      fmt::format("\"{}\" is not a time; write 2025-02-03T09:30:00+01:00, 2025-02-03T08:30:00Z or "
                  "2025-02-03, years 0001 to 9999",
                  utf8_prefix(text, 64)));
}

/// Reads a fixed layout from left to right; after the first mismatch `ok` stays false.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  int digits(int count, int lowest, int highest) {
    int value = 0;
    for (int i = 0; i < count; ++i) {
      if (text_.empty() || text_[0] < '0' || text_[0] > '9') {
        ok_ = false;
        return lowest;
      }
      value = value * 10 + (text_[0] - '0');
      text_.remove_prefix(1);
    }
    ok_ = ok_ && value >= lowest && value <= highest;
    return value;
  }
  bool take(std::string_view any_of) {
    const bool found = !text_.empty() && any_of.find(text_[0]) != std::string_view::npos;
    if (found) {
      text_.remove_prefix(1);
    }
    return found;
  }
  void expect(std::string_view any_of) { ok_ = take(any_of) && ok_; }
  [[nodiscard]] char next() const { return text_.empty() ? '\0' : text_[0]; }
  [[nodiscard]] bool at_end() const { return text_.empty(); }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  std::string_view text_;
  bool ok_ = true;
};

/// ".5" is 500,000 microseconds; digits beyond the sixth are dropped.
std::int64_t read_fraction(Reader& reader) {
  if (!reader.take(".")) {
    return 0;
  }
  std::int64_t value = reader.digits(1, 0, 9);
  int digits = 1;
  while (reader.ok() && reader.next() >= '0' && reader.next() <= '9') {
    const int digit = reader.digits(1, 0, 9);
    if (digits < 6) {
      value = value * 10 + digit;
      ++digits;
    }
  }
  for (; digits < 6; ++digits) {
    value *= 10;
  }
  return value;
}

int read_offset_minutes(Reader& reader) {
  if (reader.at_end() || reader.take("Zz")) {
    return 0;
  }
  const bool negative = reader.next() == '-';
  reader.expect("+-");
  const int hours = reader.digits(2, 0, 23);
  reader.expect(":");
  const int minutes = hours * 60 + reader.digits(2, 0, 59);
  return negative ? -minutes : minutes;
}

}  // namespace

TimestampUs now_us() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
}

std::string format_rfc3339(TimestampUs time, int offset_minutes) {
  offset_minutes = std::clamp(offset_minutes, -kMaxOffsetMinutes, kMaxOffsetMinutes);
  // Clamped twice, so that neither the sum nor the year leaves its range.
  const TimestampUs local = std::clamp(
      std::clamp(time, kFirst - kUsPerDay, kLast + kUsPerDay) + offset_minutes * kUsPerMinute,
      kFirst, kLast);
  std::int64_t day = local / kUsPerDay;
  if (local % kUsPerDay < 0) {
    --day;
  }
  const std::chrono::year_month_day date{
      std::chrono::sys_days{std::chrono::days{static_cast<int>(day)}}};
  const std::int64_t us = local - day * kUsPerDay;
  const std::int64_t seconds = us / kUsPerSecond;
  std::string text =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", static_cast<int>(date.year()),
                  static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                  seconds / 3600, seconds / 60 % 60, seconds % 60);
  const std::int64_t fraction = us % kUsPerSecond;
  if (fraction % 1000 != 0) {
    text += fmt::format(".{:06}", fraction);
  } else if (fraction != 0) {
    text += fmt::format(".{:03}", fraction / 1000);
  }
  if (offset_minutes == 0) {
    return text + "Z";
  }
  const int distance = std::abs(offset_minutes);
  return text +
         fmt::format("{}{:02}:{:02}", offset_minutes < 0 ? '-' : '+', distance / 60, distance % 60);
}

Result<ParsedTime> parse_rfc3339(std::string_view text) {
  Reader reader(text);
  const int year = reader.digits(4, 1, 9999);
  reader.expect("-");
  const int month = reader.digits(2, 1, 12);
  reader.expect("-");
  const int day = reader.digits(2, 1, 31);
  const std::chrono::year_month_day date{std::chrono::year{year},
                                         std::chrono::month{static_cast<unsigned>(month)},
                                         std::chrono::day{static_cast<unsigned>(day)}};
  if (!reader.ok() || !date.ok()) {
    return bad_time(text);
  }
  ParsedTime parsed;
  parsed.time = std::chrono::sys_days{date}.time_since_epoch().count() * kUsPerDay;
  if (reader.at_end()) {
    return parsed;
  }
  reader.expect("Tt ");
  const int hour = reader.digits(2, 0, 23);
  reader.expect(":");
  const int minute = reader.digits(2, 0, 59);
  reader.expect(":");
  const int second = reader.digits(2, 0, 60);  // 60 is a leap second: the next minute begins
  parsed.time += ((hour * 60LL + minute) * 60 + second) * kUsPerSecond + read_fraction(reader);
  parsed.offset_minutes = read_offset_minutes(reader);
  parsed.time -= parsed.offset_minutes * kUsPerMinute;
  const bool leap_at_midnight = second < 60 || parsed.time % kUsPerDay < kUsPerSecond;
  if (!reader.ok() || !reader.at_end() || !leap_at_midnight || parsed.time < kFirst ||
      parsed.time > kLast) {
    return bad_time(text);
  }
  return parsed;
}

}  // namespace inferscale
