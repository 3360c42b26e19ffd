#include "inferscale/types.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/hash.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxScopeValueBytes = 256;

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  return std::nullopt;
}

bool has_control_character(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c < 0x20 || c == 0x7F || c1) {
      return true;
    }
  }
  return false;
}

Status check_scope_value(std::string_view key, std::string_view value) {
  const std::string field = fmt::format("scope field \"{}\"", key);
  INFERSCALE_RETURN_IF_ERROR(check_text(field, value, kMaxScopeValueBytes));
  if (has_control_character(value)) {
    return invalid_argument(field + " must not contain control characters");
  }
  return Status();
}

/// Where the value of `key` goes, and whether it was given before.
struct ScopeField {
  std::string_view key;
  std::string* value;
  bool seen;
};

}  // namespace

std::string Hash128::to_hex() const { return inferscale::to_hex(bytes); }

Result<Hash128> Hash128::from_hex(std::string_view hex) {
  Hash128 hash;
  if (hex.size() != 2 * hash.bytes.size()) {
    return invalid_argument(
        fmt::format("a 128-bit hash must be 32 hexadecimal digits, not {} characters", hex.size()));
  }
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    const auto high = hex_digit(hex[2 * i]);
    const auto low = hex_digit(hex[2 * i + 1]);
    if (!high || !low) {
      return invalid_argument("a 128-bit hash must be 32 hexadecimal digits (0-9, a-f)");
    }
    hash.bytes[i] = static_cast<std::byte>(*high << 4 | *low);
  }
  return hash;
}

Scope system_scope() { return Scope{"", "", "", ""}; }

Result<Scope> parse_scope(std::string_view text) {
  Scope scope;
  ScopeField fields[] = {{"tenant", &scope.tenant, false},
                         {"user", &scope.user, false},
                         {"agent", &scope.agent, false},
                         {"run", &scope.run, false}};
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t equals = item.find('=');
    ScopeField* field = nullptr;
    for (ScopeField& candidate : fields) {
      if (equals != std::string_view::npos && item.substr(0, equals) == candidate.key) {
        field = &candidate;
      }
    }
    if (field == nullptr) {
      return invalid_argument(
          "a scope is a list such as user=alice,agent=tutor,run=r1,tenant=acme; its keys are user, "
          "agent, run and tenant");
    }
    if (field->seen) {
      return invalid_argument(fmt::format("scope field \"{}\" is given twice", field->key));
    }
    field->seen = true;
    INFERSCALE_RETURN_IF_ERROR(check_scope_value(field->key, item.substr(equals + 1)));
    *field->value = item.substr(equals + 1);
  }
  return scope;
}

std::string to_string(const Scope& scope) {
  if (scope == system_scope()) {
    return "system";
  }
  std::string text = fmt::format("tenant={},user={}", scope.tenant, scope.user);
  if (!scope.agent.empty()) {
    text += ",agent=" + scope.agent;
  }
  if (!scope.run.empty()) {
    text += ",run=" + scope.run;
  }
  return text;
}

bool scope_permits(const Scope& request, const Scope& owner) {
  if (owner.user.empty() && owner.agent.empty() && owner.run.empty()) {
    return owner.tenant.empty() || owner.tenant == request.tenant;
  }
  return owner.tenant == request.tenant && owner.user == request.user &&
         (request.agent.empty() || owner.agent == request.agent) &&
         (request.run.empty() || owner.run == request.run);
}

Hash128 scope_hash(const Scope& scope) {
  HashMessage message;
  message.add_text(scope.tenant).add_text(scope.user).add_text(scope.agent).add_text(scope.run);
  return sha256_128(message.bytes());
}

}  // namespace inferscale
