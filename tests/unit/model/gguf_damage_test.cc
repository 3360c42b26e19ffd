// A model file is data from anywhere: whatever is done to it, reading it must end in a Status.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "model/gguf_model.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

class GgufDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RandomModelOptions options;
    options.scaling = RopeScaling::kLlama3;
    options.layers = 1;
    ASSERT_TRUE(write_random_model(directory_ / "whole.gguf", options).ok());
    std::ifstream file(directory_ / "whole.gguf", std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    whole_ = content.str();
    metadata_bytes_ = whole_.find("output_norm.weight") + 1000;
    ASSERT_LT(metadata_bytes_, whole_.size());
  }
  Result<ModelSpec> read(std::string_view content) {
    const std::filesystem::path path = directory_ / "model.gguf";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return read_model_spec(path, {});
  }
  template <typename T>
  std::string with(std::size_t offset, T value) const {
    std::string changed = whole_;
    std::memcpy(changed.data() + offset, &value, sizeof(value));
    return changed;
  }
  TempDirectory directory_;
  std::string whole_;
  std::size_t metadata_bytes_ = 0;
};

TEST_F(GgufDamageTest, TruncatedAtAnyLength) {
  const std::filesystem::path path = directory_ / "whole.gguf";
  ASSERT_TRUE(read_model_spec(path, {}).ok());
  std::size_t step = 1;
  for (std::size_t length = whole_.size(); length > 0; length -= std::min(length, step)) {
    std::filesystem::resize_file(path, length - 1);
    const auto spec = read_model_spec(path, {});
    ASSERT_FALSE(spec.ok()) << length - 1;
    ASSERT_EQ(spec.status().code(),
              length - 1 < 4 ? StatusCode::kInvalidArgument : StatusCode::kDataLoss)
        << length - 1 << ": " << spec.status().to_string();
    step = length < 600 ? 1 : length < metadata_bytes_ ? 37 : 40'009;
  }
}

TEST_F(GgufDamageTest, ChangedBytesNeverCrash) {
  const std::filesystem::path path = directory_ / "whole.gguf";
  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string changed = whole_.substr(0, metadata_bytes_);
    for (int i = 0; i < 1 + round % 4; ++i) {
      changed[random() % metadata_bytes_] = static_cast<char>(random());
    }
    ASSERT_EQ(::pwrite(file, changed.data(), changed.size(), 0),
              static_cast<ssize_t>(changed.size()));
    refused += read_model_spec(path, {}).ok() ? 0 : 1;
  }
  ::close(file);
  EXPECT_GT(refused, 100);
}

TEST_F(GgufDamageTest, AbsurdHeadersAreRefused) {
  EXPECT_EQ(read("GGML and more").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read("plain text, a README perhaps").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(with(4, std::uint32_t{1})).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(with(4, std::uint32_t{99})).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(with(4, std::uint32_t{0x03000000})).status().code(), StatusCode::kInvalidArgument);
  for (const std::int64_t count : {std::int64_t{-1}, INT64_MAX, std::int64_t{1} << 40}) {
    EXPECT_EQ(read(with(8, count)).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(read(with(16, count)).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_FALSE(read(with(16, std::int64_t{60'000})).ok());
  EXPECT_FALSE(read(with(24, std::uint64_t{1} << 40)).ok());  // length of the first key
}

TEST_F(GgufDamageTest, WhatIsNoFileIsSaidSo) {
  EXPECT_EQ(read_model_spec(directory_ / "none.gguf", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_model_spec(directory_.path(), {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_model_spec("", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_model_spec(directory_ / std::string("a\0b", 3), {}).status().code(),
            StatusCode::kInvalidArgument);
  const std::filesystem::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_model_spec(pipe, {}).status().code(), StatusCode::kInvalidArgument);  // no hang
}

}  // namespace
}  // namespace inferscale::testing
