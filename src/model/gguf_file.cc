#include "model/gguf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "model/ggml_log.h"

namespace inferscale {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in the file");

// Far above any real model; keeps the parser from being asked for absurd amounts of memory.
constexpr std::int64_t kMaxKeys = 1 << 16;
constexpr std::int64_t kMaxTensors = 1 << 17;

struct Header {
  char magic[4];
  std::uint32_t version;
  std::int64_t tensors;
  std::int64_t keys;
};
static_assert(sizeof(Header) == 24);

std::string error_text() { return std::generic_category().message(errno); }

/// Reads `size` bytes at `offset`; false when the file is shorter or cannot be read.
bool read_at(int descriptor, void* data, std::size_t size, std::uint64_t offset) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::pread(descriptor, bytes, size, static_cast<off_t>(offset));
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return false;
    }
    const std::size_t done = n > 0 ? static_cast<std::size_t>(n) : 0;
    bytes += done;
    size -= done;
    offset += done;
  }
  return true;
}

/// The elements of an integer array (or a scalar of such a type) as u64; false for other types.
bool read_integers(const gguf_context* context, std::int64_t id, std::vector<std::uint64_t>& out) {
  const bool array = gguf_get_kv_type(context, id) == GGUF_TYPE_ARRAY;
  const gguf_type type = array ? gguf_get_arr_type(context, id) : gguf_get_kv_type(context, id);
  std::size_t width = 0;
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
      width = 1;
      break;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
      width = 2;
      break;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
      width = 4;
      break;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
      width = 8;
      break;
    default:
      return false;
  }
  const auto* data = static_cast<const char*>(array ? gguf_get_arr_data(context, id)
                                                    : gguf_get_val_data(context, id));
  out.assign(array ? gguf_get_arr_n(context, id) : 1, 0);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::memcpy(&out[i], data + i * width, width);
  }
  return true;
}

}  // namespace

void GgufFile::ContextDeleter::operator()(gguf_context* context) const { gguf_free(context); }

GgufFile::GgufFile(GgufFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      context_(std::move(other.context_)) {}

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(context_, other.context_);
  return *this;
}

GgufFile::~GgufFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  route_ggml_log();
  GgufFile file;
  file.path_ = path;
  INFERSCALE_RETURN_IF_ERROR(file.open_descriptor());
  INFERSCALE_RETURN_IF_ERROR(file.check_header());
  INFERSCALE_RETURN_IF_ERROR(file.parse());
  INFERSCALE_RETURN_IF_ERROR(file.check_tensor_bounds());
  return file;
}

Status GgufFile::open_descriptor() {
  if (path_.native().find('\0') != std::string::npos) {
    return invalid_argument("the path of a model must not contain a zero byte");
  }
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    std::string message = fmt::format("cannot open model {}: {}", path_.string(), error_text());
    return errno == ENOENT || errno == ENOTDIR ? not_found(std::move(message))
                                               : unavailable(std::move(message));
  }
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) {
    return unavailable(fmt::format("cannot read model {}: {}", path_.string(), error_text()));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(fmt::format("model {} is not a regular file", path_.string()));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
  return Status();
}

Status GgufFile::check_header() const {
  Header header{};
  const bool complete = read_at(descriptor_, &header, sizeof(header), 0);
  if (size_ < sizeof(header.magic) || std::memcmp(header.magic, "GGUF", 4) != 0) {
    return invalid_argument(fmt::format("model {} is not a GGUF file", path_.string()));
  }
  if (!complete) {
    return data_loss(fmt::format("model {} is truncated; fetch it again", path_.string()));
  }
  if (header.version < 2 || header.version > GGUF_VERSION) {
    return invalid_argument(fmt::format("model {} has GGUF version {}; versions 2 and {} are read",
                                        path_.string(), header.version, GGUF_VERSION));
  }
  if (header.keys < 0 || header.keys > kMaxKeys || header.tensors < 0 ||
      header.tensors > kMaxTensors) {
    return data_loss(
        fmt::format("model {} claims {} keys and {} tensors; at most {} and {} are read",
                    path_.string(), header.keys, header.tensors, kMaxKeys, kMaxTensors));
  }
  return Status();
}

Status GgufFile::parse() {
  // A stream on a duplicate: the parser then reads the very file that was checked and is hashed.
  const int duplicate = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  std::FILE* const stream = duplicate < 0 ? nullptr : ::fdopen(duplicate, "rb");
  if (stream == nullptr) {
    if (duplicate >= 0) {
      ::close(duplicate);
    }
    return unavailable(fmt::format("cannot read model {}: {}", path_.string(), error_text()));
  }
  Status status;
  try {
    std::rewind(stream);
    context_.reset(gguf_init_from_file_ptr(stream, gguf_init_params{true, nullptr}));
    if (context_ == nullptr) {
      status = data_loss(fmt::format(
          "the directory of model {} is truncated or damaged; fetch it again", path_.string()));
    }
  } catch (const std::bad_alloc&) {
    status = resource_exhausted("not enough memory to read the metadata of " + path_.string());
  } catch (const std::exception& error) {
    status = data_loss(fmt::format("model {} cannot be read: {}", path_.string(), error.what()));
  }
  std::fclose(stream);
  return status;
}

Status GgufFile::check_tensor_bounds() const {
  const std::uint64_t data = gguf_get_data_offset(context_.get());
  for (std::int64_t id = 0; id < gguf_get_n_tensors(context_.get()); ++id) {
    const std::uint64_t offset = gguf_get_tensor_offset(context_.get(), id);
    const std::uint64_t size = gguf_get_tensor_size(context_.get(), id);
    if (data > size_ || offset > size_ - data || size > size_ - data - offset) {
      return data_loss(
          fmt::format("model {} is truncated: tensor {} ends after the file; fetch it again",
                      path_.string(), gguf_get_tensor_name(context_.get(), id)));
    }
  }
  return Status();
}

Status GgufFile::wrong_type(const std::string& key, const char* expected) const {
  return data_loss(fmt::format("key {} of model {} must hold {}", key, path_.string(), expected));
}

template <typename T, typename Getter>
Result<std::optional<T>> GgufFile::scalar(const std::string& key, int type, const char* expected,
                                          Getter get) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return std::optional<T>();
  }
  if (gguf_get_kv_type(context_.get(), id) != type) {
    return wrong_type(key, expected);
  }
  return std::optional<T>(get(context_.get(), id));
}

Result<std::optional<std::string>> GgufFile::text(const std::string& key) const {
  return scalar<std::string>(key, GGUF_TYPE_STRING, "a string", gguf_get_val_str);
}

Result<std::optional<std::uint16_t>> GgufFile::u16(const std::string& key) const {
  return scalar<std::uint16_t>(key, GGUF_TYPE_UINT16, "a u16", gguf_get_val_u16);
}

Result<std::optional<std::uint32_t>> GgufFile::u32(const std::string& key) const {
  return scalar<std::uint32_t>(key, GGUF_TYPE_UINT32, "a u32", gguf_get_val_u32);
}

Result<std::optional<float>> GgufFile::f32(const std::string& key) const {
  return scalar<float>(key, GGUF_TYPE_FLOAT32, "an f32", gguf_get_val_f32);
}

Result<std::optional<bool>> GgufFile::boolean(const std::string& key) const {
  return scalar<bool>(key, GGUF_TYPE_BOOL, "a bool", gguf_get_val_bool);
}

Result<std::optional<std::uint32_t>> GgufFile::uniform_u32(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0 || gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_ARRAY) {
    return u32(key);
  }
  std::vector<std::uint64_t> values;
  if (!read_integers(context_.get(), id, values) || values.empty() || values[0] > UINT32_MAX) {
    return wrong_type(key, "a u32 or an array of them");
  }
  if (std::any_of(values.begin(), values.end(), [&](auto value) { return value != values[0]; })) {
    return unsupported(
        fmt::format("{} differs from layer to layer in model {}; only models whose layers "
                    "are alike are supported",
                    key, path_.string()));
  }
  return std::optional<std::uint32_t>(static_cast<std::uint32_t>(values[0]));
}

Result<std::optional<std::vector<std::string>>> GgufFile::texts(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return std::optional<std::vector<std::string>>();
  }
  if (gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_ARRAY ||
      gguf_get_arr_type(context_.get(), id) != GGUF_TYPE_STRING) {
    return wrong_type(key, "an array of strings");
  }
  std::vector<std::string> values(gguf_get_arr_n(context_.get(), id));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = gguf_get_arr_str(context_.get(), id, i);
  }
  return std::optional(std::move(values));
}

bool GgufFile::is_set(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return false;
  }
  if (gguf_get_kv_type(context_.get(), id) == GGUF_TYPE_FLOAT32) {
    return gguf_get_val_f32(context_.get(), id) != 0.0F;
  }
  std::vector<std::uint64_t> values;
  if (!read_integers(context_.get(), id, values)) {
    return true;  // text or another kind of array: there, whatever it says
  }
  return std::any_of(values.begin(), values.end(), [](auto value) { return value != 0; });
}

bool GgufFile::has_zero_element(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  std::vector<std::uint64_t> values;
  return id >= 0 && read_integers(context_.get(), id, values) &&
         std::find(values.begin(), values.end(), 0U) != values.end();
}

bool GgufFile::has_tensor(const char* name) const {
  return gguf_find_tensor(context_.get(), name) >= 0;
}

std::string GgufFile::bias_of_other_type() const {
  for (std::int64_t id = 0; id < gguf_get_n_tensors(context_.get()); ++id) {
    const std::string name = gguf_get_tensor_name(context_.get(), id);
    if (name.ends_with(".bias") && gguf_get_tensor_type(context_.get(), id) != GGML_TYPE_F32) {
      return name;
    }
  }
  return "";
}

Result<std::optional<std::vector<float>>> GgufFile::f32_tensor(const char* name,
                                                               std::size_t count) const {
  const std::int64_t id = gguf_find_tensor(context_.get(), name);
  if (id < 0) {
    return std::optional<std::vector<float>>();
  }
  std::vector<float> values(count);
  const std::size_t bytes = count * sizeof(float);
  if (gguf_get_tensor_type(context_.get(), id) != GGML_TYPE_F32 ||
      gguf_get_tensor_size(context_.get(), id) != bytes) {
    return data_loss(
        fmt::format("tensor {} of model {} must hold {} f32 values", name, path_.string(), count));
  }
  const std::uint64_t offset =
      gguf_get_data_offset(context_.get()) + gguf_get_tensor_offset(context_.get(), id);
  if (!read_at(descriptor_, values.data(), bytes, offset)) {
    return unavailable(fmt::format("cannot read tensor {} of model {}", name, path_.string()));
  }
  return std::optional(std::move(values));
}

}  // namespace inferscale
