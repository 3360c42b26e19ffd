#include "support/faulty_file_system.h"

#include <string>
#include <utility>

namespace inferscale::testing {
namespace {

Status injected(Fault fault, Step step, const std::filesystem::path& path) {
  const std::string message =
      "injected fault: " + std::string(step_name(step)) + " of " + path.string();
  switch (fault) {
    case Fault::kNone:
      return Status();
    case Fault::kNoSpace:
      return resource_exhausted(message);
    case Fault::kShort:
      return step == Step::kRead ? data_loss(message) : resource_exhausted(message);
    default:
      return unavailable(message);
  }
}

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, std::filesystem::path path, FaultInjector& faults)
      : file_(std::move(file)), path_(std::move(path)), faults_(faults) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    INFERSCALE_RETURN_IF_ERROR(next(Step::kRead));
    return file_->read_at(offset, out);
  }
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const Fault fault = faults_.next(Step::kWrite);
    if (fault == Fault::kShort || fault == Fault::kKillShort) {
      (void)file_->write_at(offset, data.first(data.size() / 2));
    }
    if (fault == Fault::kKillShort) {
      FaultInjector::kill_process();
    }
    INFERSCALE_RETURN_IF_ERROR(injected(fault, Step::kWrite, path_));
    return file_->write_at(offset, data);
  }
  Status zero(std::uint64_t offset, std::uint64_t size) override {
    const Fault fault = faults_.next(Step::kZero);
    if (fault == Fault::kShort || fault == Fault::kKillShort) {
      (void)file_->zero(offset, size / 2);
    }
    if (fault == Fault::kKillShort) {
      FaultInjector::kill_process();
    }
    INFERSCALE_RETURN_IF_ERROR(injected(fault, Step::kZero, path_));
    return file_->zero(offset, size);
  }
  Result<bool> punch(std::uint64_t offset, std::uint64_t size) override {
    INFERSCALE_RETURN_IF_ERROR(next(Step::kPunch));
    return file_->punch(offset, size);
  }
  Status truncate(std::uint64_t size) override {
    INFERSCALE_RETURN_IF_ERROR(next(Step::kTruncate));
    return file_->truncate(size);
  }
  Status sync() override {
    INFERSCALE_RETURN_IF_ERROR(next(Step::kSync));
    return file_->sync();
  }
  Result<std::uint64_t> size() const override { return file_->size(); }

 private:
  Status next(Step step) const { return injected(faults_.next(step), step, path_); }

  const std::unique_ptr<File> file_;
  const std::filesystem::path path_;
  FaultInjector& faults_;
};

}  // namespace

Result<std::unique_ptr<File>> FaultyFileSystem::open(const std::filesystem::path& path,
                                                     OpenMode mode) {
  if (mode == OpenMode::kCreate && files_.info(path).status().code() == StatusCode::kNotFound) {
    INFERSCALE_RETURN_IF_ERROR(injected(faults_.next(Step::kCreate), Step::kCreate, path));
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.open(path, mode));
  return std::unique_ptr<File>(std::make_unique<FaultyFile>(std::move(file), path, faults_));
}

Result<std::vector<FileEntry>> FaultyFileSystem::list(const std::filesystem::path& directory) {
  return files_.list(directory);
}

Result<FileInfo> FaultyFileSystem::info(const std::filesystem::path& path) {
  return files_.info(path);
}

Result<FileSpace> FaultyFileSystem::space(const std::filesystem::path& directory) {
  return files_.space(directory);
}

Status FaultyFileSystem::make_private_directory(const std::filesystem::path& path) {
  if (!files_.list(path).ok()) {
    INFERSCALE_RETURN_IF_ERROR(
        injected(faults_.next(Step::kMakeDirectory), Step::kMakeDirectory, path));
  }
  return files_.make_private_directory(path);
}

Status FaultyFileSystem::rename(const std::filesystem::path& from,
                                const std::filesystem::path& to) {
  INFERSCALE_RETURN_IF_ERROR(injected(faults_.next(Step::kRename), Step::kRename, to));
  return files_.rename(from, to);
}

Status FaultyFileSystem::remove(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(injected(faults_.next(Step::kRemove), Step::kRemove, path));
  return files_.remove(path);
}

Status FaultyFileSystem::sync_directory(const std::filesystem::path& directory) {
  INFERSCALE_RETURN_IF_ERROR(
      injected(faults_.next(Step::kSyncDirectory), Step::kSyncDirectory, directory));
  return files_.sync_directory(directory);
}

}  // namespace inferscale::testing
