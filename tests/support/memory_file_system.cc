#include "support/memory_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace inferscale::testing {
namespace {

constexpr std::uint64_t kSectorBytes = 512;  // what a disk writes whole or not at all

Result<std::string> normal(const std::filesystem::path& path) {
  if (path.empty() || path.native().find('\0') != std::string::npos) {
    return invalid_argument("a file path must not be empty or contain a zero byte");
  }
  const std::filesystem::path lexical = path.lexically_normal();
  return (lexical.has_filename() || lexical == "/" ? lexical : lexical.parent_path()).string();
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// A write or, without data, a truncation to `offset`.
struct Change {
  std::uint64_t offset = 0;
  std::vector<std::byte> data;
};

void replay(const Change& change, std::vector<std::byte>* content) {
  if (change.data.empty()) {
    content->resize(change.offset);
    return;
  }
  if (content->size() < change.offset + change.data.size()) {
    content->resize(change.offset + change.data.size());
  }
  std::copy(change.data.begin(), change.data.end(),
            content->begin() + static_cast<std::ptrdiff_t>(change.offset));
}

/// Applies the sectors of a change that chance picks.
void replay_torn(const Change& change, std::mt19937_64& random, std::vector<std::byte>* content) {
  if (change.data.empty()) {
    if (random() % 2 == 0) {
      replay(change, content);
    }
    return;
  }
  const std::uint64_t end = change.offset + change.data.size();
  for (std::uint64_t begin = change.offset; begin < end;) {
    const std::uint64_t next = std::min(end, (begin / kSectorBytes + 1) * kSectorBytes);
    if (random() % 2 == 0) {
      const auto data = change.data.begin() + static_cast<std::ptrdiff_t>(begin - change.offset);
      replay({begin, {data, data + static_cast<std::ptrdiff_t>(next - begin)}}, content);
    }
    begin = next;
  }
}

}  // namespace

struct MemoryFileSystem::Node {
  std::vector<std::byte> content;
  std::vector<std::byte> durable;
  std::vector<Change> unsynced;  // what leads from `durable` to `content`
  std::int64_t modified_ns = 0;
};

/// A name made (`node`, no `from`), moved (`node` and `from`) or removed (no `node`).
struct MemoryFileSystem::DirectoryChange {
  std::string name;
  std::string from;
  std::shared_ptr<Node> node;

  void apply(Names* names) const {
    if (node == nullptr) {
      names->erase(name);
      return;
    }
    if (!from.empty()) {
      const auto old = names->find(from);
      if (old == names->end() || old->second != node) {
        return;  // its creation was lost
      }
      names->erase(old);
    }
    (*names)[name] = node;
  }
  [[nodiscard]] bool touches(const std::string& directory) const {
    return parent_of(name) == directory || (!from.empty() && parent_of(from) == directory);
  }
};

class MemoryFileSystem::OpenFile final : public File {
 public:
  OpenFile(MemoryFileSystem* files, std::string path, std::shared_ptr<Node> node, bool writable)
      : files_(files),
        path_(std::move(path)),
        node_(std::move(node)),
        writable_(writable),
        power_cuts_(files->power_cuts_) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(true));
    const std::vector<std::byte>& content = node_->content;
    if (!out.empty() && (offset > content.size() || out.size() > content.size() - offset)) {
      return data_loss(fmt::format("{} ends before byte {} + {}", path_, offset, out.size()));
    }
    std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(out.empty() ? 0 : offset), out.size(),
                out.begin());
    return Status();
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(writable_));
    if (offset > kMaxBytes || data.size() > kMaxBytes - offset) {
      return invalid_argument(path_ + ": no file has such a byte");
    }
    if (!data.empty()) {
      change({offset, {data.begin(), data.end()}});
    }
    return Status();
  }

  Status zero(std::uint64_t offset, std::uint64_t size) override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(writable_));
    INFERSCALE_RETURN_IF_ERROR(check_within(offset, size));
    if (size > 0) {
      change({offset, std::vector<std::byte>(size)});
    }
    return Status();
  }

  Result<bool> punch(std::uint64_t offset, std::uint64_t size) override {
    {
      const std::lock_guard lock(files_->mutex_);
      INFERSCALE_RETURN_IF_ERROR(usable(writable_));
      INFERSCALE_RETURN_IF_ERROR(check_within(offset, size));
      if (!files_->punches_) {
        return false;
      }
    }
    INFERSCALE_RETURN_IF_ERROR(zero(offset, size));
    return true;
  }

  Status truncate(std::uint64_t size) override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(writable_));
    if (size > kMaxBytes) {
      return invalid_argument(path_ + ": no file has such a size");
    }
    change({size, {}});
    return Status();
  }

  Status sync() override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(true));
    node_->durable = node_->content;
    node_->unsynced.clear();
    return Status();
  }

  Result<std::uint64_t> size() const override {
    const std::lock_guard lock(files_->mutex_);
    INFERSCALE_RETURN_IF_ERROR(usable(true));
    return node_->content.size();
  }

 private:
  static constexpr std::uint64_t kMaxBytes = 1ULL << 32;

  Status usable(bool permitted) const {
    if (power_cuts_ != files_->power_cuts_) {
      return unavailable(path_ + ": opened before a power cut");
    }
    return permitted ? Status() : unavailable(path_ + ": open for reading only");
  }
  Status check_within(std::uint64_t offset, std::uint64_t size) const {
    return offset <= node_->content.size() && size <= node_->content.size() - offset
               ? Status()
               : invalid_argument(path_ + ": bytes that are not within it");
  }
  void change(Change made) {
    replay(made, &node_->content);
    node_->modified_ns = ++files_->now_ns_;
    node_->unsynced.push_back(std::move(made));
  }

  MemoryFileSystem* const files_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const bool writable_;
  const std::uint64_t power_cuts_;
};

MemoryFileSystem::MemoryFileSystem() : directories_({"/", "."}) {}
MemoryFileSystem::~MemoryFileSystem() = default;

Status MemoryFileSystem::check_parent(const std::string& path) const {
  return directories_.contains(parent_of(path)) ? Status()
                                                : not_found(path + ": its directory is missing");
}

Result<std::unique_ptr<File>> MemoryFileSystem::open(const std::filesystem::path& path,
                                                     OpenMode mode) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(path));
  if (directories_.contains(name)) {
    return unavailable(name + ": not a regular file");
  }
  auto found = names_.find(name);
  if (found == names_.end()) {
    if (mode != OpenMode::kCreate) {
      return not_found(name + ": no such file");
    }
    INFERSCALE_RETURN_IF_ERROR(check_parent(name));
    auto node = std::make_shared<Node>();
    node->modified_ns = ++now_ns_;
    unsynced_.push_back({name, "", node});
    found = names_.emplace(name, std::move(node)).first;
  }
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(this, name, found->second, mode != OpenMode::kRead));
}

Result<std::vector<FileEntry>> MemoryFileSystem::list(const std::filesystem::path& directory) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(directory));
  if (!directories_.contains(name)) {
    return not_found(name + ": no such directory");
  }
  std::vector<FileEntry> entries;
  const auto add = [&](const std::string& path, bool is_directory) {
    if (path != name && parent_of(path) == name) {
      entries.push_back({std::filesystem::path(path).filename().string(), is_directory});
    }
  };
  for (const auto& entry : names_) {
    add(entry.first, false);
  }
  for (const std::string& entry : directories_) {
    add(entry, true);
  }
  return entries;
}

Result<FileInfo> MemoryFileSystem::info(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(path));
  if (directories_.contains(name)) {
    return unavailable(name + ": not a regular file");
  }
  const auto found = names_.find(name);
  if (found == names_.end()) {
    return not_found(name + ": no such file");
  }
  return FileInfo{found->second->content.size(), found->second->modified_ns};
}

Result<FileSpace> MemoryFileSystem::space(const std::filesystem::path&) {
  constexpr std::uint64_t kTotal = 1ULL << 40;
  const std::lock_guard lock(mutex_);
  return FileSpace{free_bytes_.value_or(kTotal), kTotal};
}

void MemoryFileSystem::set_free_bytes(std::optional<std::uint64_t> bytes) {
  const std::lock_guard lock(mutex_);
  free_bytes_ = bytes;
}

Status MemoryFileSystem::make_private_directory(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(path));
  std::filesystem::path partial;
  for (const std::filesystem::path& part : std::filesystem::path(name)) {
    partial /= part;
    if (names_.contains(partial.string())) {
      return unavailable(partial.string() + ": not a directory");
    }
    directories_.insert(partial.string());
  }
  return Status();
}

Status MemoryFileSystem::rename(const std::filesystem::path& from,
                                const std::filesystem::path& to) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string source, normal(from));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string target, normal(to));
  INFERSCALE_RETURN_IF_ERROR(check_parent(target));
  const auto found = names_.find(source);
  if (found == names_.end()) {
    return not_found(source + ": no such file");
  }
  if (directories_.contains(target)) {
    return unavailable(target + ": not a regular file");
  }
  if (source != target) {
    unsynced_.push_back({target, source, found->second});
    unsynced_.back().apply(&names_);
  }
  return Status();
}

Status MemoryFileSystem::remove(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(path));
  if (directories_.contains(name)) {
    return unavailable(name + ": not a regular file");
  }
  if (names_.erase(name) > 0) {
    unsynced_.push_back({name, "", nullptr});
  }
  return Status();
}

Status MemoryFileSystem::sync_directory(const std::filesystem::path& directory) {
  const std::lock_guard lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, normal(directory));
  if (!directories_.contains(name)) {
    return not_found(name + ": no such directory");
  }
  std::vector<DirectoryChange> left;
  for (DirectoryChange& change : unsynced_) {
    if (change.touches(name)) {
      change.apply(&durable_names_);
    } else {
      left.push_back(std::move(change));
    }
  }
  unsynced_ = std::move(left);
  return Status();
}

void MemoryFileSystem::power_cut(std::optional<std::uint64_t> seed) {
  const std::lock_guard lock(mutex_);
  ++power_cuts_;
  std::mt19937_64 random(seed.value_or(0));
  if (seed) {
    for (const DirectoryChange& change : unsynced_) {
      if (random() % 2 == 0) {
        change.apply(&durable_names_);
      }
    }
  }
  unsynced_.clear();
  names_ = durable_names_;
  for (const auto& entry : names_) {
    Node& node = *entry.second;
    if (seed) {
      for (const Change& change : node.unsynced) {
        replay_torn(change, random, &node.durable);
      }
    }
    node.unsynced.clear();
    node.content = node.durable;
  }
}

void MemoryFileSystem::flip_bit(const std::filesystem::path& path, std::uint64_t offset,
                                unsigned bit) {
  const std::lock_guard lock(mutex_);
  Node& node = *names_.at(normal(path).value());
  node.content.at(offset) ^= std::byte{1} << bit;
  node.durable = node.content;
  node.unsynced.clear();
}

void MemoryFileSystem::set_punches(bool punches) {
  const std::lock_guard lock(mutex_);
  punches_ = punches;
}

}  // namespace inferscale::testing
