#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/import/export_format.h"
#include "cli/json_views.h"
#include "cli/paths.h"

namespace inferscale::cli {
namespace {

namespace fs = std::filesystem;

struct ExportArgs {
  std::string output;
};

Status refused(const std::string& path, const char* why) {
  return invalid_argument(fmt::format("cannot export to {}: {}", path, why));
}

/// Whether a file of this name would lie in `directory`, whatever links and mounts lead there.
bool lies_in(const fs::path& path, const fs::path& directory) {
  std::error_code error;
  fs::path at = fs::weakly_canonical(fs::absolute(path, error), error);
  const fs::path root = at.root_path();
  while (!at.empty() && at != root) {
    if (fs::equivalent(at, directory, error)) {
      return true;
    }
    at = at.parent_path();
  }
  return false;
}

/// Where an export goes: stdout, a pipe or device, or a file that appears under its name when it is
/// whole.
class ExportFile {
 public:
  explicit ExportFile(std::string path) : path_(std::move(path)) {}
  ~ExportFile() {
    if (file_ != nullptr && file_ != stdout) {
      std::fclose(file_);
    }
    if (!part_.empty()) {
      ::unlink(part_.c_str());
    }
  }
  ExportFile(const ExportFile&) = delete;
  ExportFile& operator=(const ExportFile&) = delete;

  /// Errors: kInvalidArgument when something stands there that an export must not replace.
  Status open(const fs::path& data_directory) {
    if (path_.empty()) {
      file_ = stdout;
      return {};
    }
    // The folder of the records may be a link to another disk.
    if (lies_in(path_, data_directory) || lies_in(path_, data_directory / "kv")) {
      return refused(path_, "it lies in the data directory, whose files are the memory itself");
    }
    std::error_code error;
    const fs::file_status found = fs::status(path_, error);
    if (fs::is_directory(found)) {
      return refused(path_, "it is a directory; name a file");
    }
    if (fs::exists(found) && !fs::is_regular_file(found)) {
      return open_as_it_is();
    }
    // Renaming would replace the link, and the file that is meant would keep its old content.
    if (fs::is_symlink(fs::symlink_status(path_, error))) {
      return refused(path_, "it is a symbolic link; name the file itself");
    }
    part_ = path_ + ".part-XXXXXX";
    const int descriptor = ::mkostemp(part_.data(), O_CLOEXEC);  // mode 0600
    if (descriptor < 0) {
      part_.clear();
    }
    return take(descriptor);
  }
  Status write(const std::string& lines) {
    return std::fwrite(lines.data(), 1, lines.size(), file_) == lines.size() ? Status() : failed();
  }
  Status finish() {
    if (std::fflush(file_) != 0) {
      return failed();
    }
    if (part_.empty()) {
      return {};
    }
    if (::fsync(::fileno(file_)) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) {
      return failed();
    }
    part_.clear();
    return {};
  }

 private:
  /// A pipe or device: written, never replaced.
  Status open_as_it_is() {
    INFERSCALE_RETURN_IF_ERROR(take(::open(path_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC)));
    struct stat found = {};
    if (::fstat(::fileno(file_), &found) != 0) {
      return failed();
    }
    return S_ISREG(found.st_mode) ? refused(path_, "it has become a file meanwhile") : Status();
  }

  Status take(int descriptor) {
    file_ = descriptor < 0 ? nullptr : ::fdopen(descriptor, "wb");
    return file_ == nullptr ? failed() : Status();
  }

  [[nodiscard]] Status failed() const {
    const std::string message =
        fmt::format("cannot write {}: {}", path_.empty() ? "to stdout" : path_,
                    std::generic_category().message(errno));
    return errno == ENOSPC || errno == EDQUOT ? resource_exhausted(message) : unavailable(message);
  }

  const std::string path_;
  std::string part_;  // until it has its name
  std::FILE* file_ = nullptr;
};

Result<ExportCounts> write_export(Shell& shell, MemoryService& service, const Scope& scope,
                                  ExportFile& file) {
  ExportWriter writer;
  ExportCounts counts;
  ExportSink sink;
  sink.begin = [&](const ExportCounts& found) {
    counts = found;
    return file.write(writer.header(scope, found, format_rfc3339(now_us())));
  };
  sink.turn = [&](const TurnView& turn) { return file.write(writer.turn(turn)); };
  sink.fact = [&](const ExportedFact& fact) { return file.write(writer.fact(fact)); };
  INFERSCALE_RETURN_IF_ERROR(service.export_scope(scope, sink, shell.work_control()));
  INFERSCALE_RETURN_IF_ERROR(file.write(writer.end()));
  INFERSCALE_RETURN_IF_ERROR(file.finish());
  return counts;
}

Result<int> run_export(Shell& shell, const ExportArgs& args) {
  // /dev/stdout by name: where it is a file, opening it anew would cut off what stands there.
  const bool to_stdout = args.output == "-" || args.output == "/dev/stdout";
  const std::string path = to_stdout ? std::string() : args.output;
  if (shell.json() && path.empty()) {
    return invalid_argument("--json: give --output FILE as well; stdout cannot hold both");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const fs::path directory, data_directory(shell.options().data));
  ExportFile file(path);
  INFERSCALE_RETURN_IF_ERROR(file.open(directory));
  INFERSCALE_ASSIGN_OR_RETURN(const ExportCounts counts,
                              write_export(shell, *service, scope, file));
  shell.progress().finish();
  if (shell.json()) {
    shell.print_json(json_text(path, counts));
  } else {
    shell.note(fmt::format("inferscale: exported {} facts, {} older versions and {} turns",
                           counts.facts, counts.versions, counts.turns));
  }
  return 0;
}

}  // namespace

void add_export_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<ExportArgs>();
  root.add(shell,
           {"export", "Write a scope's facts, turns and history as JSON Lines",
            "inferscale export --scope user=alice --output alice.jsonl"},
           [&shell, args] { return run_export(shell, *args); })
      .text("--output", args->output, "FILE", "File to write, mode 0600 [stdout]");
}

}  // namespace inferscale::cli
