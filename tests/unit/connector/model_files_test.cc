#include "connector/model_files.h"

#include <gtest/gtest.h>

#include "base/hash.h"
#include "unit/kv/files.h"
#include "unit/kv/temp_directory.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using testing::TempDirectory;
using testing::write_bytes;

Result<Hash128> fingerprint(const std::vector<fs::path>& files, std::string_view canonical) {
  return model_files_fingerprint(files, as_byte_span(canonical), {});
}

TEST(ModelFiles, ContentNamesAndSettingsDecide) {
  const TempDirectory directory;
  const fs::path a = directory.path() / "a.safetensors", b = directory.path() / "b.safetensors";
  write_bytes(a, as_byte_span("first"));
  write_bytes(b, as_byte_span("second"));
  const Result<Hash128> both = fingerprint({a, b}, "rope");
  ASSERT_TRUE(both.ok()) << both.status().to_string();
  EXPECT_EQ(*both, *fingerprint({b, a}, "rope")) << "the order of the list does not matter";
  EXPECT_NE(*both, *fingerprint({a}, "rope"));
  EXPECT_NE(*both, *fingerprint({a, b}, "other"));
  const fs::path other = directory.path() / "other";
  fs::create_directory(other);
  fs::rename(a, other / "a.safetensors");
  EXPECT_EQ(*both, *fingerprint({other / "a.safetensors", b}, "rope"));
  fs::rename(other / "a.safetensors", other / "c.safetensors");
  EXPECT_NE(*both, *fingerprint({other / "c.safetensors", b}, "rope"));
  write_bytes(b, as_byte_span("third!"));
  write_bytes(a, as_byte_span("first"));
  EXPECT_NE(*both, *fingerprint({a, b}, "rope"));
}

TEST(ModelFiles, RefusesWhatIsNoModel) {
  const TempDirectory directory;
  EXPECT_EQ(fingerprint({}, "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fingerprint({directory.path() / "gone"}, "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fingerprint({directory.path()}, "").status().code(), StatusCode::kUnavailable);
  const fs::path a = directory.path() / "a";
  write_bytes(a, as_byte_span("x"));
  EXPECT_EQ(fingerprint({a, a}, "").status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelFiles, ACacheGivesTheSame) {
  const TempDirectory directory;
  const fs::path a = directory.path() / "a";
  write_bytes(a, as_byte_span("weights"));
  const fs::path cache = directory.path() / "cache";
  const Result<Hash128> plain = fingerprint({a}, "x");
  ASSERT_TRUE(plain.ok());
  for (int i = 0; i < 2; ++i) {
    const Result<Hash128> cached =
        model_files_fingerprint(std::vector{a}, as_byte_span("x"), cache);
    ASSERT_TRUE(cached.ok());
    EXPECT_EQ(*cached, *plain);
  }
}

}  // namespace
}  // namespace inferscale
