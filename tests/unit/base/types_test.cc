#include "inferscale/types.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/scope_check.h"

namespace inferscale {
namespace {

TEST(Hash128Test, HexRoundTrip) {
  const std::string hex = "00112233445566778899aabbccddeeff";
  const auto hash = Hash128::from_hex(hex);
  ASSERT_TRUE(hash.ok());
  EXPECT_EQ(hash->to_hex(), hex);
  EXPECT_EQ(Hash128::from_hex("00112233445566778899AABBCCDDEEFF").value(), *hash);
  EXPECT_EQ(Hash128().to_hex(), std::string(32, '0'));
}

TEST(Hash128Test, RejectsWhatIsNotHex) {
  for (const std::string text :
       {"", "0011", "0011223344556677889-aabbccddeeff", "00112233445566778899aabbccddeeff0",
        "g0112233445566778899aabbccddeeff"}) {
    EXPECT_EQ(Hash128::from_hex(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(ScopeTest, ParsesInAnyOrderWithDefaults) {
  const auto scope = parse_scope("user=alice,agent=tutor,run=r1,tenant=acme");
  ASSERT_TRUE(scope.ok());
  EXPECT_EQ(*scope, (Scope{"acme", "alice", "tutor", "r1"}));
  EXPECT_EQ(parse_scope("run=r1,user=bob").value(), (Scope{"default", "bob", "", "r1"}));
  EXPECT_EQ(parse_scope("tenant=acme").value(), (Scope{"acme", "default", "", ""}));
  EXPECT_EQ(parse_scope("user=a=b").value().user, "a=b");
}

TEST(ScopeTest, TextRoundTrip) {
  for (const char* text :
       {"tenant=acme,user=alice,agent=tutor,run=r1", "tenant=default,user=Zoë"}) {
    EXPECT_EQ(to_string(parse_scope(text).value()), text);
  }
  EXPECT_EQ(to_string(system_scope()), "system");
}

TEST(ScopeTest, RejectsMalformedText) {
  const std::string bad[] = {"",
                             ",",
                             "alice",
                             "user=",
                             "user=alice,",
                             "user=alice,user=bob",
                             "name=alice",
                             "user=al\x01ice",
                             "user=al\x7fice",
                             "user=al\xc2\x85ice",
                             "user=\xff",
                             std::string("user=a\0b", 8),
                             "user=" + std::string(257, 'a')};
  for (const std::string& text : bad) {
    EXPECT_EQ(parse_scope(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_TRUE(parse_scope("user=" + std::string(256, 'a')).ok());
}

TEST(ScopeTest, PermitsOwnAndSharedRecordsOnly) {
  const Scope request{"acme", "alice", "tutor", ""};
  EXPECT_TRUE(scope_permits(request, request));
  EXPECT_TRUE(scope_permits(request, {"acme", "alice", "tutor", "r1"}));  // run is not set
  EXPECT_FALSE(scope_permits(request, {"acme", "alice", "", ""}));        // agent is
  EXPECT_FALSE(scope_permits(request, {"acme", "alice", "coach", ""}));
  EXPECT_FALSE(scope_permits(request, {"acme", "bob", "tutor", ""}));
  EXPECT_FALSE(scope_permits(request, {"other", "alice", "tutor", ""}));
  EXPECT_TRUE(scope_permits(request, system_scope()));
  EXPECT_TRUE(scope_permits(request, {"acme", "", "", ""}));
  EXPECT_FALSE(scope_permits(request, {"other", "", "", ""}));
  EXPECT_FALSE(scope_permits(request, {"acme", "", "tutor", ""}));  // belongs to nobody we know
  EXPECT_TRUE(scope_permits({"acme", "alice", "", ""}, {"acme", "alice", "tutor", "r1"}));
}

TEST(ScopeTest, HashesTellFieldsApart) {
  const Scope scopes[] = {{"ab", "c", "", ""}, {"a", "bc", "", ""}, {"a", "b", "c", ""},
                          {"a", "b", "", "c"}, {"", "", "", ""},    {"a", "", "b", "c"}};
  std::set<std::string> seen;
  for (const Scope& scope : scopes) {
    EXPECT_TRUE(seen.insert(scope_hash(scope).to_hex()).second);
  }
  // Written to disk: must never change.
  EXPECT_EQ(scope_hash(Scope{}).to_hex(), "dc1c8505d502d594955b0304bb0d1646");
}

TEST(ScopeCheck, FieldsDependOnEachOther) {
  EXPECT_TRUE(check_scope("", system_scope()).ok());
  EXPECT_TRUE(check_scope("", Scope{"acme", "", "", ""}).ok());
  EXPECT_TRUE(check_scope("", Scope{"acme", "zoe", "a", "r"}).ok());
  for (const Scope& wrong : {Scope{"", "zoe", "", ""}, Scope{"acme", "", "a", ""},
                             Scope{"acme", "", "", "r"}, Scope{"acme", "z\n", "", ""},
                             Scope{std::string(257, 'x'), "", "", ""}, Scope{"\xff", "", "", ""}}) {
    EXPECT_EQ(check_scope("", wrong).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(check_scope("facts[3]", Scope{"", "zoe", "", ""}).message(),
            "facts[3].scope.tenant must be set where user is");
}

}  // namespace
}  // namespace inferscale
