#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

struct gguf_context;

namespace inferscale {

/// Metadata and tensor directory of a GGUF file from anywhere. The C interface behind it aborts
/// when a key is read with another type than its own; here that is kDataLoss, and an absent key is
/// an empty optional. Movable; const members are safe to call concurrently.
class GgufFile {
 public:
  /// Reads header and directory, no weights. Errors: kNotFound, kUnavailable (I/O),
  /// kInvalidArgument (not GGUF, or a version that is not supported), kDataLoss (damaged, or
  /// shorter than its tensors), kResourceExhausted.
  [[nodiscard]] static Result<GgufFile> open(const std::filesystem::path& path);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Open for reading as long as this object lives.
  [[nodiscard]] int descriptor() const { return descriptor_; }

  [[nodiscard]] Result<std::optional<std::string>> text(const std::string& key) const;
  [[nodiscard]] Result<std::optional<std::uint16_t>> u16(const std::string& key) const;
  [[nodiscard]] Result<std::optional<std::uint32_t>> u32(const std::string& key) const;
  [[nodiscard]] Result<std::optional<float>> f32(const std::string& key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(const std::string& key) const;
  /// A number, or an array of them that are all equal. Errors: kUnsupported when they differ.
  [[nodiscard]] Result<std::optional<std::uint32_t>> uniform_u32(const std::string& key) const;
  /// Of an array of strings, each as far as its first zero byte.
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> texts(const std::string& key) const;
  /// Whether the key exists and its value, or an element of it, is not zero, false or empty.
  [[nodiscard]] bool is_set(const std::string& key) const;
  /// Whether the key holds an array with an element that is zero.
  [[nodiscard]] bool has_zero_element(const std::string& key) const;

  [[nodiscard]] bool has_tensor(const char* name) const;
  /// The first tensor whose name ends with ".bias" and that is not in f32; empty without.
  [[nodiscard]] std::string bias_of_other_type() const;
  /// The elements of a one-dimensional f32 tensor, or nothing when there is no such tensor. Errors:
  /// kDataLoss when type or size are others, kUnavailable.
  [[nodiscard]] Result<std::optional<std::vector<float>>> f32_tensor(const char* name,
                                                                     std::size_t count) const;

 private:
  GgufFile() = default;
  [[nodiscard]] Status open_descriptor();
  [[nodiscard]] Status check_header() const;
  [[nodiscard]] Status parse();
  [[nodiscard]] Status check_tensor_bounds() const;
  [[nodiscard]] Status wrong_type(const std::string& key, const char* expected) const;
  template <typename T, typename Getter>
  [[nodiscard]] Result<std::optional<T>> scalar(const std::string& key, int type,
                                                const char* expected, Getter get) const;

  struct ContextDeleter {
    void operator()(gguf_context* context) const;
  };
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::unique_ptr<gguf_context, ContextDeleter> context_;
};

}  // namespace inferscale
