#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/import/export_format.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

struct ExportArgs {
  std::string output;
};

/// Where an export goes: stdout, or a file that appears under its name when it is whole.
class ExportFile {
 public:
  explicit ExportFile(std::string path) : path_(std::move(path)) {}
  ~ExportFile() {
    if (file_ != nullptr && file_ != stdout) {
      std::fclose(file_);
      ::unlink(part_.c_str());
    }
  }
  ExportFile(const ExportFile&) = delete;
  ExportFile& operator=(const ExportFile&) = delete;

  Status open() {
    if (path_.empty()) {
      file_ = stdout;
      return {};
    }
    part_ = path_ + ".part-XXXXXX";
    const int descriptor = ::mkostemp(part_.data(), O_CLOEXEC);  // mode 0600
    file_ = descriptor < 0 ? nullptr : ::fdopen(descriptor, "wb");
    return file_ == nullptr ? failed() : Status();
  }
  Status write(const std::string& lines) {
    return std::fwrite(lines.data(), 1, lines.size(), file_) == lines.size() ? Status() : failed();
  }
  Status finish() {
    if (std::fflush(file_) != 0) {
      return failed();
    }
    if (file_ == stdout) {
      return {};
    }
    if (::fsync(::fileno(file_)) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) {
      return failed();
    }
    std::fclose(std::exchange(file_, nullptr));
    return {};
  }

 private:
  [[nodiscard]] Status failed() const {
    const std::string message =
        fmt::format("cannot write {}: {}", path_.empty() ? "to stdout" : path_,
                    std::generic_category().message(errno));
    return errno == ENOSPC || errno == EDQUOT ? resource_exhausted(message) : unavailable(message);
  }

  const std::string path_;
  std::string part_;
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
  const std::string path = args.output == "-" ? std::string() : args.output;
  if (shell.json() && path.empty()) {
    return invalid_argument("--json: give --output FILE as well; stdout cannot hold both");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  ExportFile file(path);
  INFERSCALE_RETURN_IF_ERROR(file.open());
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
