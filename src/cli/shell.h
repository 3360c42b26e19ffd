#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/progress_meter.h"
#include "inferscale/memory.h"
#include "inferscale/status.h"

namespace inferscale::cli {

/// Options that every command takes, as written.
struct CommonOptions {
  std::string data;
  std::string scope = "user=default";
  std::string model;
  std::string embedder;
  std::string engine;   ///< empty: the embedded one
  std::string context;  ///< empty: the data directory's
  std::string top_j = "auto";
  std::string codec = "f16";  ///< of new records
  std::string host_budget = "1GiB";
  std::string disk_budget = "8GiB";
  std::uint32_t threads = 0;
  bool json = false;
  bool progress = false;
  int verbose = 0;
};

/// Whether a command can do without the served model's file.
enum class ModelNeed { kIfPresent, kRequired };

/// What a command runs in: the common options, resolved, and where its output goes. Results go to
/// stdout, everything else to stderr.
class Shell {
 public:
  CommonOptions& options() { return options_; }
  [[nodiscard]] const CommonOptions& options() const { return options_; }
  [[nodiscard]] bool json() const { return options_.json; }

  [[nodiscard]] Result<Scope> scope() const;
  [[nodiscard]] Result<std::optional<std::uint32_t>> top_j() const;
  /// What the options say, over whatever engine. Errors: those of the options; kNotFound (a model).
  [[nodiscard]] Result<MemoryOptions> service_options(ModelNeed need) const;
  /// For commands that work on the embedded engine alone. Errors: kUnsupported (--engine).
  [[nodiscard]] Result<MemoryOptions> memory_options(ModelNeed need) const;
  /// Commands that run long encode in the background; the others encode before they end.
  [[nodiscard]] Result<std::unique_ptr<MemoryService>> open_service(
      ModelNeed need, bool encode_in_background = false) const;

  /// Progress (unless --json without --progress) and Ctrl-C for the service's long calls.
  [[nodiscard]] WorkControl work_control();
  [[nodiscard]] ProgressMeter& progress() { return progress_; }

  /// A document of json_views.h as one line on stdout.
  void print_json(std::string_view document) const;
  /// Text on stdout, control characters made visible.
  void print(std::string_view text) const;
  /// A line on stderr; nothing with --json.
  void note(std::string_view text) const;

  using Action = std::function<Result<int>()>;
  void set_action(Action action) { action_ = std::move(action); }
  [[nodiscard]] const Action& action() const { return action_; }

 private:
  CommonOptions options_;
  ProgressMeter progress_;
  Action action_;
};

/// The exit code of a call that reported bad items, after they were printed.
[[nodiscard]] int report_item_errors(const Shell& shell, const std::vector<ItemError>& errors);

/// `argument`, or all of stdin when it is "-". Errors: kResourceExhausted over `max_bytes`.
[[nodiscard]] Result<std::string> text_or_stdin(const std::string& argument, std::size_t max_bytes);

}  // namespace inferscale::cli
