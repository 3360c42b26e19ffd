#include "engine/vllm/address.h"

#include <fmt/format.h>

#include "base/http_client.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kForm =
    "expected vllm=http://HOST:PORT[,control=http://127.0.0.1:PORT][,control-file=PATH]";

Status wrong(std::string_view what) {
  return invalid_argument(fmt::format("engine: {}; {}", what, kForm));
}

Status take(std::string_view name, std::string_view value, VllmAddress& address) {
  if (value.empty()) {
    return wrong(fmt::format("{} has no value", name));
  }
  if (name == "control-file") {
    if (!address.control_file.empty()) {
      return wrong("control-file is given twice");
    }
    address.control_file = value;
    return Status();
  }
  std::string& target = name == "vllm" ? address.url : address.control;
  if (!target.empty()) {
    return wrong(fmt::format("{} is given twice", name));
  }
  target = value;
  while (!target.empty() && target.back() == '/') {
    target.pop_back();
  }
  const Result<HttpUrl> url = parse_http_url(target);
  if (!url.ok()) {
    return wrong(fmt::format("{}: {}", name, url.status().message()));
  }
  return url->target == "/" ? Status() : wrong(fmt::format("{} has a path", name));
}

}  // namespace

Result<VllmAddress> parse_vllm_address(std::string_view text) {
  VllmAddress address;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    if (equals == std::string_view::npos ||
        (name != "vllm" && name != "control" && name != "control-file")) {
      return wrong(fmt::format("\"{}\" is not known", utf8_prefix(part, 64)));
    }
    INFERSCALE_RETURN_IF_ERROR(take(name, part.substr(equals + 1), address));
  }
  return address.url.empty() ? Result<VllmAddress>(wrong("no vllm=URL"))
                             : Result<VllmAddress>(std::move(address));
}

}  // namespace inferscale
