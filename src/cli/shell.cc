#include "cli/shell.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/utf8.h"
#include "cli/interrupt.h"
#include "cli/option_values.h"
#include "cli/paths.h"
#include "cli/status_line.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kErrorsShown = 20;

void write_stdout(std::string_view text) {
  clear_status_line();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

Result<Scope> Shell::scope() const {
  const Result<Scope> scope = parse_scope(options_.scope);
  return scope.ok() ? scope : Result<Scope>(scope.status().with_context("--scope"));
}

Result<std::optional<std::uint32_t>> Shell::top_j() const { return parse_top_j(options_.top_j); }

Result<MemoryOptions> Shell::memory_options(ModelNeed need) const {
  if (!options_.engine.empty()) {
    return unsupported("--engine: this command works on the engine inside the program only");
  }
  return service_options(need);
}

Result<MemoryOptions> Shell::service_options(ModelNeed need) const {
  MemoryOptions memory;
  INFERSCALE_ASSIGN_OR_RETURN(memory.directory, data_directory(options_.data));
  memory.cache_directory = cache_directory();
  memory.engine = options_.engine;
  if (memory.engine.empty()) {
    Result<std::filesystem::path> model = find_model(options_.model);
    if (!model.ok() && (need == ModelNeed::kRequired || names_model(options_.model))) {
      return model.status();
    }
    memory.model = model.ok() ? *model : std::filesystem::path();
  } else if (!options_.model.empty()) {
    return invalid_argument("--model: the server of --engine has its own; leave it out");
  }
  INFERSCALE_ASSIGN_OR_RETURN(memory.embedder, find_embedder(options_.embedder));
  memory.encode_context = options_.context;
  INFERSCALE_ASSIGN_OR_RETURN(memory.top_j, top_j());
  INFERSCALE_ASSIGN_OR_RETURN(memory.host_budget_bytes,
                              parse_size("--host-budget", options_.host_budget));
  INFERSCALE_ASSIGN_OR_RETURN(memory.disk_budget_bytes,
                              parse_size("--disk-budget", options_.disk_budget));
  memory.store_codec = codec_from_name(options_.codec).value_or(memory.store_codec);
  memory.threads = static_cast<int>(options_.threads);
  return memory;
}

Result<std::unique_ptr<MemoryService>> Shell::open_service(ModelNeed need,
                                                           bool encode_in_background) const {
  INFERSCALE_ASSIGN_OR_RETURN(MemoryOptions memory, service_options(need));
  memory.encode_in_background = encode_in_background;
  if (memory.embedder.empty() && !names_embedder(options_.embedder)) {
    note(
        "no embedding model: facts are found by keywords alone; fetch it with `./run setup`, or "
        "give --embedder FILE (--embedder none says that this is wanted)");
  }
  return MemoryService::open(memory);
}

WorkControl Shell::work_control() {
  progress_.set_enabled(!options_.json || options_.progress);
  WorkControl control;
  control.progress = progress_.callback();
  control.cancelled = &interrupted();
  return control;
}

void Shell::print_json(std::string_view document) const {
  write_stdout(std::string(document) + "\n");
}

void Shell::print(std::string_view text) const { write_stdout(printable(text)); }

void Shell::note(std::string_view text) const {
  if (!options_.json) {
    write_stderr_line(printable(text));
  }
}

int report_item_errors(const Shell& shell, const std::vector<ItemError>& errors) {
  if (errors.empty()) {
    return 0;
  }
  for (std::size_t i = 0; i < std::min(errors.size(), kErrorsShown); ++i) {
    shell.note(fmt::format("inferscale: {}: item {}: {}", error_row(errors[i].code).name,
                           errors[i].item, errors[i].message));
  }
  if (errors.size() > kErrorsShown) {
    shell.note(fmt::format("... and {} more; --json lists all", errors.size() - kErrorsShown));
  }
  return error_row(errors[0].code).exit_code;
}

Result<std::string> text_or_stdin(const std::string& argument, std::size_t max_bytes) {
  if (argument != "-") {
    return argument;
  }
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof(buffer), stdin)) {
    text.append(buffer, count);
    if (text.size() > max_bytes) {
      return resource_exhausted(fmt::format("stdin: longer than {}", format_size(max_bytes)));
    }
  }
  return text;
}

}  // namespace inferscale::cli
