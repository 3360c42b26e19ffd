#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/http_client.h"

namespace inferscale {

Result<HttpUrl> parse_http_url(const std::string& url) {
  const auto wrong = [](std::string_view what) {
    return invalid_argument(fmt::format("URL: {}", what));
  };
  if (url.size() > 2048 || std::any_of(url.begin(), url.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7F;
      })) {
    return wrong("longer than 2,048 bytes, or with a space or a character that is not ASCII");
  }
  HttpUrl parsed;
  std::string_view rest = url;
  if (rest.substr(0, 7) == "http://") {
    rest.remove_prefix(7);
  } else if (rest.substr(0, 8) == "https://") {
    rest.remove_prefix(8);
    parsed.tls = true;
  } else {
    return wrong("begins with neither http:// nor https://");
  }
  const std::size_t path = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view authority = rest.substr(0, path);
  parsed.target = rest.substr(path);
  if (parsed.target.empty() || parsed.target[0] != '/') {
    parsed.target.insert(0, "/");
  }
  if (parsed.target.find('#') != std::string::npos) {
    return wrong("has a fragment");
  }
  if (authority.find('@') != std::string_view::npos) {
    return wrong("has a user name");
  }
  std::string_view port;
  const std::size_t colon = authority.rfind(':');
  const std::size_t bracket = authority.rfind(']');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
    unsigned number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number == 0 || number > 65535) {
      return wrong("has a port that is none");
    }
  }
  if (authority.size() > 2 && authority.front() == '[' && authority.back() == ']') {
    authority = authority.substr(1, authority.size() - 2);
  } else if (authority.find_first_of("[]:") != std::string_view::npos) {
    return wrong("has a host that is none");
  }
  if (authority.empty()) {
    return wrong("has no host");
  }
  parsed.host = authority;
  parsed.port = port.empty() ? (parsed.tls ? "443" : "80") : std::string(port);
  return parsed;
}

}  // namespace inferscale
