#include "connector/request_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/hash.h"
#include "unit/kv/sample_records.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::hash_of;
using ::testing::HasSubstr;

constexpr const char* kCases = INFERSCALE_SOURCE_DIR "/tests/golden/request-v1-cases.json";

/// The bytes 0, 1, … 31.
const std::vector<std::byte>& secret() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> made;
    for (int i = 0; i < 32; ++i) {
      made.push_back(static_cast<std::byte>(i));
    }
    return made;
  }();
  return bytes;
}

RequestParams sample() {
  RequestParams params;
  params.request = "req-1";
  params.scope = Scope{"acme", "zo\xC3\xAB", "tutor", "r1"};
  params.epoch = 7;
  params.purpose = RequestPurpose::kInject;
  params.top_j = 4;
  params.client_salt = "mine";
  params.inject = {{*Hash128::from_hex("00112233445566778899aabbccddeeff")},
                   {*Hash128::from_hex("ffeeddccbbaa99887766554433221100")}};
  CaptureParams capture;
  capture.key.value = *Hash128::from_hex("0123456789abcdef0123456789abcdef");
  capture.begin = 10;
  capture.end = 14;
  capture.context_kind = ContextKind::kWindow;
  capture.context_id = hash_of(0xaa);
  capture.context_tokens = 10;
  params.capture = {capture};
  return params;
}

StatusCode code_of(const json& object) {
  return parse_params(object.dump(), secret()).status().code();
}

json read_cases() {
  std::ifstream file(kCases);
  return json::parse(file);
}

// The expected values of this and the next test come from Python's hmac over parts written down
// anew from docs/vllm.md; tests/python/test_params.py does the same for whole requests.
TEST(RequestParams, SignatureIsTheDocumentedOne) {
  EXPECT_EQ(to_hex(sign_params(sample(), secret())),
            "c06026a6146803f15d0b0472bac4266dd980043c93bd9f645dded137e14b15fb");
  EXPECT_EQ(control_token(secret()),
            "504deb34259b18833e16227119702fec3d4ee1a824bb248dcf34db227c6c3edb");
}

TEST(RequestParams, SaltIsTheDocumentedOne) {
  RequestParams params = sample();
  const Hash128 model = hash_of(0x5c);
  EXPECT_EQ(cache_salt(secret(), params, model), "Cb9_7wzCk7tsxY6NWy7ylFAqApXdQ0sN4wAD3ET1-MI");
  params.purpose = RequestPurpose::kText;
  EXPECT_EQ(cache_salt(secret(), params, model), "7pxc7fGFXTGGI4iGs0Zluq4XP9kZhvmBP6KvfyG75Ec");
  params.purpose = RequestPurpose::kEncode;
  params.context = "window:8";
  EXPECT_EQ(cache_salt(secret(), params, model), "z9OIUhoMkZbz73g7oJmgzlV59JpFAEo_46PxQ_cPOS4");
}

TEST(RequestParams, EveryPartOfTheSaltSeparates) {
  const Hash128 model = hash_of(1);
  const auto salt = [&](auto change) {
    RequestParams params = sample();
    change(params);
    return cache_salt(secret(), params, model);
  };
  const std::string own = salt([](auto&) {});
  EXPECT_NE(own, salt([](auto& p) { p.scope.tenant = "other"; }));
  EXPECT_NE(own, salt([](auto& p) { p.scope.user = "other"; }));
  EXPECT_NE(own, salt([](auto& p) { p.client_salt = ""; }));
  EXPECT_NE(own, salt([](auto& p) { ++p.epoch; }));
  EXPECT_NE(own, salt([](auto& p) { ++p.top_j; }));
  EXPECT_NE(own, salt([](auto& p) { p.purpose = RequestPurpose::kText; }));
  EXPECT_NE(own, cache_salt(secret(), sample(), hash_of(2)));
  EXPECT_NE(own, cache_salt(std::vector<std::byte>(32), sample(), model));
  // Parts cannot be moved across their borders.
  EXPECT_NE(salt([](auto& p) { p.scope.tenant = "ab", p.scope.user = "c"; }),
            salt([](auto& p) { p.scope.tenant = "a", p.scope.user = "bc"; }));
  // What belongs to the same user and purpose shares blocks.
  EXPECT_EQ(own, salt([](auto& p) { p.request = "other", p.inject.clear(), p.capture.clear(); }));
}

TEST(RequestParams, ComesBackAsItWasSigned) {
  const RequestParams params = sample();
  const Result<RequestParams> parsed = parse_params(signed_params_json(params, secret()), secret());
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, params);
}

TEST(RequestParams, NothingMayChangeAfterSigning) {
  const json whole = json::parse(signed_params_json(sample(), secret()));
  const json changes[] = {{{"request", "req-2"}},
                          {{"scope", {{"tenant", "acm"}}}},
                          {{"scope", {{"user", "x"}}}},
                          {{"scope", {{"agent", ""}}}},
                          {{"scope", {{"run", "r2"}}}},
                          {{"epoch", 8}},
                          {{"purpose", "encode"}, {"context", "log:8"}},
                          {{"top_j", 5}},
                          {{"client_salt", "other"}},
                          {{"inject", json::array()}},
                          {{"capture", json::array()}}};
  for (const json& change : changes) {
    json changed = whole;
    changed.merge_patch(change);
    EXPECT_EQ(code_of(changed), StatusCode::kPermissionDenied) << change.dump();
  }
  for (const auto& [field, value] : whole["capture"][0].items()) {
    json changed = whole;
    json& now = changed["capture"][0][field];
    now = field == "context_kind" ? json("near")
          : field == "owner"      ? json("scope")
          : field == "begin"      ? json(11)
          : value.is_number()     ? json(value.get<int>() + 1)
                                  : json(std::string(32, '0'));
    if (field != "owner") {
      EXPECT_EQ(code_of(changed), StatusCode::kPermissionDenied) << field;
    }
  }
  json swapped = whole;
  std::swap(swapped["inject"][0], swapped["inject"][1]);
  EXPECT_EQ(code_of(swapped), StatusCode::kPermissionDenied);
}

TEST(RequestParams, AWrongOrNoSignatureIsRefused) {
  json object = json::parse(signed_params_json(sample(), secret()));
  const std::string right = object["signature"];
  EXPECT_EQ(code_of(object), StatusCode::kOk);
  for (std::size_t i = 0; i < right.size(); ++i) {
    std::string wrong = right;
    wrong[i] = wrong[i] == '0' ? '1' : '0';
    object["signature"] = wrong;
    EXPECT_EQ(code_of(object), StatusCode::kPermissionDenied);
  }
  for (const json& malformed :
       {json(right.substr(1)), json(right + "0"), json(""), json(1), json()}) {
    object["signature"] = malformed;
    EXPECT_EQ(code_of(object), StatusCode::kInvalidArgument) << malformed.dump();
  }
  object.erase("signature");
  EXPECT_EQ(code_of(object), StatusCode::kPermissionDenied);
  EXPECT_EQ(parse_params(signed_params_json(sample(), secret()), std::vector<std::byte>(32))
                .status()
                .code(),
            StatusCode::kPermissionDenied);
}

TEST(RequestParams, AShortSecretIsRefused) {
  const std::vector<std::byte> tiny(15);
  EXPECT_EQ(parse_params(signed_params_json(sample(), tiny), tiny).status().code(),
            StatusCode::kInvalidArgument);
}

// The cases are shared with tests/python/test_schema.py, which gives them to the JSON schema too.
TEST(RequestParams, AcceptsAndRefusesWhatTheCasesSay) {
  const json cases = read_cases();
  ASSERT_GT(cases["cases"].size(), 80U);
  for (const json& entry : cases["cases"]) {
    json object = cases["base"];
    object.merge_patch(entry["patch"]);
    const Result<RequestParams> parsed = parse_unsigned_params(object.dump());
    if (entry["accepted"]) {
      ASSERT_TRUE(parsed.ok()) << entry["name"] << ": " << parsed.status().to_string();
      const std::string sent = signed_params_json(*parsed, secret());
      const Result<RequestParams> again = parse_params(sent, secret());
      ASSERT_TRUE(again.ok()) << entry["name"] << ": " << again.status().to_string();
      EXPECT_EQ(*again, *parsed) << entry["name"];
    } else {
      EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << entry["name"];
      object["signature"] = std::string(64, '0');
      EXPECT_EQ(code_of(object), StatusCode::kInvalidArgument) << entry["name"];
    }
  }
}

TEST(RequestParams, MessagesNameTheField) {
  json object = read_cases()["base"];
  object["capture"][0]["context_tokens"] = -1;
  EXPECT_THAT(parse_unsigned_params(object.dump()).status().message(),
              HasSubstr("capture[0].context_tokens must be an integer in 0.."));
  object = read_cases()["base"];
  object["inject"][1] = "x";
  EXPECT_THAT(parse_unsigned_params(object.dump()).status().message(), HasSubstr("inject[1]"));
  object["signature"] = "x";
  object["inject"] = json::array();
  EXPECT_THAT(parse_unsigned_params(object.dump()).status().message(), HasSubstr("signature"));
}

TEST(RequestParams, TextThatIsNotOneObjectIsRefused) {
  const std::string whole = signed_params_json(sample(), secret());
  const std::string texts[] = {"",
                               "null",
                               "[]",
                               "1",
                               "\"x\"",
                               "{",
                               whole + whole,
                               whole + "x",
                               "{\"v\":1," + whole.substr(1),  // v twice
                               std::string("{\"v\":1,\"request\":\"a\\u0000\"}"),
                               std::string("{\"\xff\":1}"),
                               std::string(2000, '['),
                               "{\"v\":1e999}",
                               "{\"scope\":" + std::string(1000, '[')};
  for (const std::string& text : texts) {
    EXPECT_EQ(parse_params(text, secret()).status().code(), StatusCode::kInvalidArgument)
        << text.substr(0, 60);
  }
}

TEST(RequestParams, NumbersOfKeysAreBounded) {
  RequestParams params = sample();
  params.inject.assign(kMaxInjectKeys, RecordKey{hash_of(1)});
  EXPECT_TRUE(parse_params(signed_params_json(params, secret()), secret()).ok());
  params.inject.emplace_back();
  EXPECT_EQ(parse_params(signed_params_json(params, secret()), secret()).status().code(),
            StatusCode::kInvalidArgument);
  params = sample();
  params.capture.assign(kMaxCaptures, params.capture[0]);
  EXPECT_TRUE(parse_params(signed_params_json(params, secret()), secret()).ok());
  params.capture.push_back(params.capture[0]);
  EXPECT_EQ(parse_params(signed_params_json(params, secret()), secret()).status().code(),
            StatusCode::kInvalidArgument);
  const std::string padded = signed_params_json(sample(), secret()) + std::string(1U << 20, ' ');
  EXPECT_EQ(parse_params(padded, secret()).status().code(), StatusCode::kInvalidArgument);
}

TEST(RequestParams, TextThatCannotBeSentFailsItsSignature) {
  RequestParams params = sample();
  params.client_salt.push_back('\xff');
  EXPECT_EQ(parse_params(signed_params_json(params, secret()), secret()).status().code(),
            StatusCode::kPermissionDenied);
}

TEST(RequestParams, OwnersAreScopes) {
  const Scope request{"acme", "zoe", "tutor", "r1"};
  EXPECT_EQ(owner_scope(request, RecordOwner::kScope), request);
  EXPECT_EQ(owner_scope(request, RecordOwner::kTenant), (Scope{"acme", "", "", ""}));
  EXPECT_EQ(owner_scope(request, RecordOwner::kSystem), system_scope());
}

TEST(RequestParams, ContextKindsHaveTheirNames) {
  for (int i = 0; i <= static_cast<int>(ContextKind::kParked); ++i) {
    const auto kind = static_cast<ContextKind>(i);
    const Result<ContextKind> parsed = parse_context_kind(context_kind_name(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  EXPECT_FALSE(parse_context_kind("unknown").ok());
  // The last kind is the one after which there is none: a new one must be added to the parser.
  EXPECT_STREQ(
      context_kind_name(static_cast<ContextKind>(static_cast<int>(ContextKind::kParked) + 1)),
      "unknown");
}

}  // namespace
}  // namespace inferscale
