#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace inferscale {
namespace {

TEST(HashTest, Sha256KnownVectors) {  // FIPS 180-2
  EXPECT_EQ(sha256_128({}).to_hex(), "e3b0c44298fc1c149afbf4c8996fb924");
  EXPECT_EQ(sha256_128(as_byte_span("abc")).to_hex(), "ba7816bf8f01cfea414140de5dae2223");
}

TEST(HashTest, StreamEqualsOneCall) {
  const std::string text(100'000, 'x');
  Sha256Stream stream;
  for (std::size_t at = 0; at < text.size(); at += 777) {
    stream.update(as_byte_span(std::string_view(text).substr(at, 777)));
  }
  stream.update({});
  EXPECT_EQ(stream.finish_128(), sha256_128(as_byte_span(text)));
}

TEST(HashTest, HmacKnownVectors) {  // RFC 4231, cases 1, 2 and 6
  EXPECT_EQ(
      hmac_sha256_128(as_byte_span(std::string(20, '\x0b')), as_byte_span("Hi There")).to_hex(),
      "b0344c61d8db38535ca8afceaf0bf12b");
  EXPECT_EQ(
      hmac_sha256_128(as_byte_span("Jefe"), as_byte_span("what do ya want for nothing?")).to_hex(),
      "5bdcc146bf60754e6a042426089575c7");
  EXPECT_EQ(hmac_sha256_128(as_byte_span(std::string(131, '\xaa')),
                            as_byte_span("Test Using Larger Than Block-Size Key - Hash Key First"))
                .to_hex(),
            "60e431591ee0b67f0d8a26aacbf5b77f");
  EXPECT_EQ(hmac_sha256_128({}, {}).to_hex(), "b613679a0814d9ec772f95d778c35fc5");
}

TEST(HashTest, WholeHmacKnownVector) {  // RFC 4231, case 2
  const auto mac = hmac_sha256(as_byte_span("Jefe"), as_byte_span("what do ya want for nothing?"));
  EXPECT_EQ(to_hex(mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(HashTest, ComparesInConstantTime) {
  EXPECT_TRUE(equal_in_constant_time(as_byte_span("abc"), as_byte_span("abc")));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  EXPECT_FALSE(equal_in_constant_time(as_byte_span("abc"), as_byte_span("abd")));
  EXPECT_FALSE(equal_in_constant_time(as_byte_span("abc"), as_byte_span("bbc")));
  EXPECT_FALSE(equal_in_constant_time(as_byte_span("abc"), as_byte_span("ab")));
}

TEST(HashTest, Base64UrlKnownVectors) {  // RFC 4648, section 10, and the two signs of its own
  EXPECT_EQ(to_base64url({}), "");
  EXPECT_EQ(to_base64url(as_byte_span("f")), "Zg");
  EXPECT_EQ(to_base64url(as_byte_span("fo")), "Zm8");
  EXPECT_EQ(to_base64url(as_byte_span("foo")), "Zm9v");
  EXPECT_EQ(to_base64url(as_byte_span("foobar")), "Zm9vYmFy");
  EXPECT_EQ(to_base64url(as_byte_span("\xfb\xff\xfe")), "-__-");
}

TEST(HashTest, Xxh3KnownVectors) {
  EXPECT_EQ(xxh3_128({}).to_hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128(as_byte_span("abc")).to_hex(), "06b05ab6733a618578af5f94892f3950");
}

TEST(HashMessageTest, BytesAreLittleEndianAndPrefixed) {
  HashMessage message;
  message.add_u32(0x01020304).add_text("ab");
  const unsigned char expected[] = {4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 'a', 'b'};
  ASSERT_EQ(message.bytes().size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(message.bytes().data(), expected, sizeof(expected)), 0);
}

TEST(HashMessageTest, TokensAreU32WithTheirCount) {
  const TokenId tokens[] = {1, -1};
  HashMessage message;
  message.add_tokens(tokens);
  const unsigned char expected[] = {2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255};
  ASSERT_EQ(message.bytes().size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(message.bytes().data(), expected, sizeof(expected)), 0);
}

TEST(HashMessageTest, PartsCannotRunIntoEachOther) {
  HashMessage left;
  left.add_text("ab").add_text("c");
  HashMessage right;
  right.add_text("a").add_text("bc");
  EXPECT_NE(sha256_128(left.bytes()), sha256_128(right.bytes()));
}

}  // namespace
}  // namespace inferscale
