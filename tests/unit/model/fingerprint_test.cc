#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "model/content_hash.h"
#include "model/gguf_model.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() : path_(directory_ / "model.gguf") {
    options_.cache_directory = directory_ / "cache";
  }
  void SetUp() override { ASSERT_TRUE(write_random_model(path_, {}).ok()); }

  [[nodiscard]] Hash128 fingerprint() const {
    const auto spec = read_model_spec(path_, options_);
    EXPECT_TRUE(spec.ok()) << spec.status().to_string();
    return spec.ok() ? spec->fingerprint : Hash128();
  }
  /// Adds one to a byte in the middle of the weights.
  void change_weight() const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    const auto offset = static_cast<std::streamoff>(std::filesystem::file_size(path_) / 2);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() + 1);
    file.seekp(offset);
    file.put(byte);
  }
  [[nodiscard]] FileIdentity identity() const {
    const int descriptor = ::open(path_.c_str(), O_RDONLY);
    const FileIdentity found = file_identity(descriptor, path_).value();
    ::close(descriptor);
    return found;
  }
  [[nodiscard]] std::filesystem::path cache_file() const {
    return content_hash_cache_path(identity(), options_.cache_directory);
  }
  /// Files touched a moment ago are not cached.
  static void let_settle() { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }

  TempDirectory directory_;
  std::filesystem::path path_;
  FingerprintOptions options_;
};

TEST_F(FingerprintTest, DependsOnEverythingThatDecidesKv) {
  const Hash128 first = fingerprint();
  EXPECT_EQ(fingerprint(), first);
  options_.adapter_id = "lora-1";
  const Hash128 adapted = fingerprint();
  EXPECT_NE(adapted, first);
  options_.adapter_id.clear();
  options_.engine_settings = "lora-1";
  EXPECT_NE(fingerprint(), first);
  EXPECT_NE(fingerprint(), adapted);
  options_.engine_settings.clear();
  EXPECT_EQ(fingerprint(), first);
}

// Records of a build that did not know of the bias hold keys with it.
TEST_F(FingerprintTest, SaysWhetherRecordsAreWithoutTheBiasOfKeys) {
  RandomModelOptions qwen;
  qwen.architecture = "qwen2";
  ASSERT_TRUE(write_random_model(path_, qwen).ok());
  ModelSpec spec = read_model_spec(path_, options_).value();
  const int descriptor = ::open(path_.c_str(), O_RDONLY);
  const Hash128 content = file_content_hash(descriptor, path_, {}).value();
  ::close(descriptor);
  ASSERT_FALSE(spec.key_bias.empty());
  EXPECT_EQ(model_fingerprint(content, spec, options_), spec.fingerprint);
  spec.key_bias.clear();
  EXPECT_NE(model_fingerprint(content, spec, options_), spec.fingerprint);
}

// Of the build before that: models without a bias keep their records.
TEST_F(FingerprintTest, IsWhatItWasOfAModelWithoutABias) {
  const ModelSpec spec = read_model_spec(path_, options_).value();
  ASSERT_TRUE(spec.key_bias.empty());
  HashMessage message;
  const int descriptor = ::open(path_.c_str(), O_RDONLY);
  message.add_text("inferscale model 1");
  message.add_hash(file_content_hash(descriptor, path_, {}).value());
  ::close(descriptor);
  message.add_text("llama").add_text(spec.rope.canonical_bytes()).add_text("").add_text("");
  EXPECT_EQ(spec.fingerprint, sha256_128(message.bytes()));
}

TEST_F(FingerprintTest, OneWeightByteChangesIt) {
  let_settle();
  const Hash128 first = fingerprint();
  EXPECT_TRUE(std::filesystem::exists(cache_file()));
  change_weight();
  EXPECT_NE(fingerprint(), first);
}

TEST_F(FingerprintTest, ACopyElsewhereIsTheSameModel) {
  const Hash128 first = fingerprint();
  std::filesystem::copy_file(path_, directory_ / "copy.gguf");
  path_ = directory_ / "copy.gguf";
  EXPECT_EQ(fingerprint(), first);
}

TEST_F(FingerprintTest, UnchangedFilesAreNotReadAgain) {
  let_settle();
  const Hash128 first = fingerprint();
  struct stat info {};
  ASSERT_EQ(::stat(cache_file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0600U);
  ASSERT_EQ(::stat(options_.cache_directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0700U);

  // An entry with another hash and a good checksum: if it is believed, the file was not read.
  std::vector<std::byte> entry = read_file(cache_file(), 1000).value();
  constexpr std::size_t kHashField =
      8 + sizeof(Hash128);  // with its length; content hash, then checksum
  const std::size_t checked = entry.size() - kHashField;
  entry[checked - 1] ^= std::byte{1};
  const Hash128 checksum = xxh3_128(std::span(entry).first(checked));
  std::copy(checksum.bytes.begin(), checksum.bytes.end(), entry.end() - sizeof(Hash128));
  ASSERT_TRUE(write_file_atomic(cache_file(), entry, Durability::kNone).ok());
  EXPECT_NE(fingerprint(), first);
}

TEST_F(FingerprintTest, CorruptCacheFilesAreIgnored) {
  let_settle();
  const Hash128 first = fingerprint();
  const std::filesystem::path cache = cache_file();
  std::ifstream in(cache, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  ASSERT_FALSE(good.empty());
  for (std::size_t at = 0; at < good.size(); at += 5) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    std::ofstream(cache, std::ios::binary | std::ios::trunc) << bad;
    EXPECT_EQ(fingerprint(), first) << "byte " << at;
  }
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "x", std::string(1 << 20, 'x')}) {
    std::ofstream(cache, std::ios::binary | std::ios::trunc) << bad;
    EXPECT_EQ(fingerprint(), first);
  }
}

TEST_F(FingerprintTest, AFreshlyWrittenFileIsNotCachedYet) {
  // It could change again without its times showing it. A slow machine may cache it, rightly.
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(write_random_model(path_, {}).ok());
  (void)fingerprint();
  const bool cached = std::filesystem::exists(cache_file());
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(80)) {
    EXPECT_FALSE(cached);
  }
}

TEST_F(FingerprintTest, AnUnusableCacheDirectoryIsNoError) {
  let_settle();
  options_.cache_directory = path_ / "below-a-file";
  EXPECT_NE(fingerprint(), Hash128());
  options_.cache_directory.clear();
  EXPECT_NE(fingerprint(), Hash128());
}

TEST_F(FingerprintTest, HashesAHundredMegabytesInUnderASecond) {
  const std::filesystem::path large = directory_ / "large";
  std::filesystem::resize_file((std::ofstream(large), large), 100 << 20);
  const int descriptor = ::open(large.c_str(), O_RDONLY);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(file_content_hash(descriptor, large, {}).ok());
  const auto elapsed = std::chrono::steady_clock::now() - start;
  ::close(descriptor);
  RecordProperty("ms", static_cast<int>(
                           std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count()));
  EXPECT_LT(elapsed, std::chrono::seconds(10));  // 0.1 s on an idle machine; tests share theirs
}

}  // namespace
}  // namespace inferscale::testing
