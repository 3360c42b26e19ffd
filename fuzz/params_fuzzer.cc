#include <stdlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "connector/request_params.h"
#include "connector/scheduler_index.h"
#include "reader_choice.h"

/// What somebody sends as a request's parameters is refused, or it is within its limits: then it
/// can be signed, read back unchanged, and matched against a prompt.

namespace {

using namespace inferscale;  // NOLINT: a program of its own

void require(bool condition) {
  if (!condition) {
    abort();
  }
}

constexpr std::array<std::byte, 32> kSecret{};

bool refused(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kPermissionDenied;
}

void signed_ones(std::string_view text) {
  const Result<RequestParams> params = parse_params(text, kSecret);
  require(params.ok() || refused(params.status()));
}

void unsigned_ones(std::string_view text) {
  const Result<RequestParams> params = parse_unsigned_params(text);
  if (!params.ok()) {
    require(refused(params.status()));
    return;
  }
  require(!params->request.empty() && params->inject.size() <= kMaxInjectKeys &&
          params->capture.size() <= kMaxCaptures);
  for (const CaptureParams& capture : params->capture) {
    require(capture.begin < capture.end);
  }
  const Result<RequestParams> again = parse_params(signed_params_json(*params, kSecret), kSecret);
  require(again.ok() && *again == *params);
  require(cache_salt(kSecret, *params, Hash128{}).size() == 43);

  const Result<std::unique_ptr<SchedulerIndex>> index = SchedulerIndex::create(1);
  require(index.ok());
  const std::array<TokenId, 3> prompt = {1, 2, 3};
  const Match match = (*index)->match(prompt, *params);
  std::size_t counted = 0;
  for (const MatchFallback& fallback : match.fallbacks) {
    counted += fallback.count;
  }
  require(counted == params->inject.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint8_t kReaders = 2;
  reader_choice::dispatch(data, size, kReaders, [](std::uint8_t reader, std::string_view text) {
    reader == 0 ? signed_ones(text) : unsigned_ones(text);
  });
  return 0;
}
