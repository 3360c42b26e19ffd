#include "base/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/utf8.h"

namespace inferscale {
namespace {

/// Watches a parse go by and remembers the first thing that is not accepted.
class Watcher {
 public:
  explicit Watcher(int max_depth) : max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      refuse_if(depth >= max_depth_, fmt::format("is nested deeper than {} levels", max_depth_));
    }
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      refuse_if(!keys_.back().insert(key).second, fmt::format("has the key \"{}\" twice", key));
      refuse_if(key.find('\0') != std::string::npos, "has a key with U+0000");
    } else if (event == Event::value && parsed.is_string()) {
      refuse_if(parsed.get_ref<const std::string&>().find('\0') != std::string::npos,
                "has a string with U+0000");
    }
    return true;
  }

  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  void refuse_if(bool condition, std::string fault) {
    if (condition && fault_.empty()) {
      fault_ = std::move(fault);
    }
  }

  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of each open object
  std::string fault_;
};

}  // namespace

Result<nlohmann::json> parse_json_object(std::string_view field, std::string_view text,
                                         std::size_t max_bytes, int max_depth) {
  INFERSCALE_RETURN_IF_ERROR(check_text(field, text, max_bytes));
  if (text.find('\0') != std::string_view::npos) {  // the parser would take it for the end
    return invalid_argument(fmt::format("{} has U+0000", field));
  }
  Watcher watcher(max_depth);
  nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), std::ref(watcher), false);
  if (parsed.is_discarded() || !parsed.is_object()) {
    return invalid_argument(
        fmt::format("{} must be a JSON object such as {{\"key\":\"value\"}}", field));
  }
  if (!watcher.fault().empty()) {
    return invalid_argument(fmt::format("{} {}", field, watcher.fault()));
  }
  return parsed;
}

}  // namespace inferscale
