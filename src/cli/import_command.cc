#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/import/import_formats.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"
#include "cli/option_values.h"
#include "cli/restore_run.h"

namespace inferscale::cli {
namespace {

// Each batch is one durable step: what a Ctrl-C or a crash leaves behind is whole batches.
constexpr std::size_t kTurnsPerBatch = 256;
constexpr std::size_t kFactsPerBatch = 64;

struct ImportArgs {
  std::string file;
  std::string format = "auto";
  std::string conversation;
  std::string mem0_user;
  std::string facts_file;
  bool no_wait = false;
  bool dry_run = false;
  bool salvage = false;
};

Result<std::string> read_source(const std::string& path) {
  if (path == "-") {
    return text_or_stdin(path, kMaxImportBytes);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMaxImportBytes));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<ImportBatch> read_batch(const ImportArgs& args) {
  ImportOptions options;
  INFERSCALE_ASSIGN_OR_RETURN(options.format, parse_import_format(args.format));
  options.conversation = args.conversation;
  options.mem0_user = args.mem0_user;
  options.salvage = args.salvage;
  options.facts_from_turns = args.facts_file.empty();
  INFERSCALE_ASSIGN_OR_RETURN(const std::string bytes, read_source(args.file));
  Result<ImportBatch> batch = parse_import(bytes, options);
  if (!batch.ok()) {
    return batch.status().with_context(args.file);
  }
  const bool exported = batch->format == ImportFormat::kInferscale;
  if (exported && !args.facts_file.empty()) {
    return invalid_argument("--facts: an export of InferScale has facts of its own");
  }
  if (!exported && (args.dry_run || args.salvage)) {
    return invalid_argument("--dry-run, --salvage: for exports of InferScale only");
  }
  if (args.facts_file.empty()) {
    return batch;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::string fact_bytes, read_source(args.facts_file));
  Result<ImportBatch> facts = parse_facts_file(fact_bytes);
  if (!facts.ok()) {
    return facts.status().with_context(args.facts_file);
  }
  batch->facts = std::move(facts->facts);
  batch->fact_items = std::move(facts->fact_items);
  for (ItemError& error : facts->errors) {
    error.message = args.facts_file + ": " + error.message;
    batch->errors.push_back(std::move(error));
  }
  return batch;
}

class ImportRun {
 public:
  ImportRun(Shell& shell, MemoryService& service, Scope scope, const ImportBatch& batch,
            bool dry_run)
      : shell_(shell),
        service_(service),
        scope_(std::move(scope)),
        batch_(batch),
        dry_run_(dry_run) {
    report_.format = import_format_name(batch.format);
    report_.skipped = batch.skipped;
    report_.errors = batch.errors;
  }

  /// Ends early, with kOk, after a Ctrl-C.
  Status store() {
    if (batch_.format == ImportFormat::kInferscale) {
      return store_exported(shell_, service_, scope_, batch_.exported, dry_run_, report_);
    }
    INFERSCALE_RETURN_IF_ERROR(
        store_list("turns", batch_.turns, batch_.turn_items, kTurnsPerBatch));
    return store_list("facts", batch_.facts, batch_.fact_items, kFactsPerBatch);
  }

  Status encode() {
    INFERSCALE_ASSIGN_OR_RETURN(const EncodeReply reply,
                                service_.encode_pending(shell_.work_control()));
    report_.facts_encoded += reply.encoded;
    report_.facts_failed += reply.failed;
    if (reply.stopped_early) {
      report_.note =
          "the engine failed again and again: facts that are not encoded are used as text (stats "
          "says why, and when they are tried again)";
    }
    return {};
  }

  [[nodiscard]] ImportReport report(double elapsed_ms) const {
    ImportReport report = report_;
    report.interrupted = interrupted();
    report.elapsed_ms = elapsed_ms;
    return report;
  }

 private:
  Result<AddReply> add(std::span<const TurnInput> turns) {
    return service_.add(scope_, turns, {}, false, quiet_control());
  }
  Result<AddReply> add(std::span<const FactInput> facts) {
    return service_.add(scope_, {}, facts, false, quiet_control());
  }
  static WorkControl quiet_control() {
    WorkControl control;
    control.cancelled = &interrupted();
    return control;
  }

  template <typename Item>
  Status store_list(const char* stage, const std::vector<Item>& items,
                    const std::vector<std::uint64_t>& sources, std::size_t per_batch) {
    const WorkControl control = shell_.work_control();
    for (std::size_t from = 0; from < items.size() && !interrupted(); from += per_batch) {
      const std::size_t count = std::min(per_batch, items.size() - from);
      control.progress(stage, from, items.size());
      INFERSCALE_ASSIGN_OR_RETURN(const AddReply reply, add(std::span(items).subspan(from, count)));
      report_.turns += reply.turns;
      report_.facts_added += reply.facts_added;
      report_.facts_existing += reply.facts_existing;
      report_.note = reply.note.empty() ? report_.note : reply.note;
      for (ItemError error : reply.errors) {
        error.item = sources[from + std::min<std::uint64_t>(error.item, count - 1)];
        report_.errors.push_back(std::move(error));
      }
    }
    shell_.progress().finish();
    return {};
  }

  Shell& shell_;
  MemoryService& service_;
  const Scope scope_;
  const ImportBatch& batch_;
  const bool dry_run_;
  ImportReport report_;
};

/// How many records fit the disk and memory budgets, from what is stored so far.
std::string capacity_note(MemoryService& service) {
  const Result<StatsReply> stats = service.stats();
  if (!stats.ok()) {
    return {};
  }
  for (auto tier = stats->kv.tiers.rbegin(); tier != stats->kv.tiers.rend(); ++tier) {
    if (tier->records > 0) {
      const std::uint64_t each = tier->bytes / tier->records;
      return fmt::format("records: {} a fact; the {} budget of {} holds about {}\n",
                         format_size(each), tier->name, format_size(tier->budget_bytes),
                         tier->budget_bytes / std::max<std::uint64_t>(each, 1));
    }
  }
  return {};
}

void print_report(const Shell& shell, const ImportReport& report) {
  if (shell.json()) {
    shell.print_json(json_text(report));
    return;
  }
  shell.print(fmt::format("{}: {} new turns, {} new facts, {} known already; {} encoded in {}\n",
                          report.format, report.turns, report.facts_added, report.facts_existing,
                          report.facts_encoded, format_duration(report.elapsed_ms / 1e3)));
  if (report.dry_run) {
    shell.print("nothing was written (--dry-run)\n");
  }
  if (report.renamed > 0) {
    shell.print(fmt::format("{} facts have new ids: another scope has theirs\n", report.renamed));
  }
  if (report.skipped > 0) {
    shell.print(fmt::format("{} items had no words and were left out\n", report.skipped));
  }
  if (report.facts_failed > 0) {
    shell.print(
        fmt::format("{} facts could not be encoded; they are used as text\n", report.facts_failed));
  }
}

Result<int> run_import(Shell& shell, const ImportArgs& args) {
  const Stopwatch watch;
  const bool encode = !args.no_wait && !args.dry_run;
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const ImportBatch batch, read_batch(args));
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<MemoryService> service,
      shell.open_service(encode ? ModelNeed::kRequired : ModelNeed::kIfPresent));
  ImportRun run(shell, *service, scope, batch, args.dry_run);
  Status status = run.store();
  if (status.ok() && encode && !interrupted()) {
    status = run.encode();
  }
  shell.progress().finish();
  const ImportReport report = run.report(watch.elapsed_ms());
  if (!status.ok() && !interrupted()) {
    return status.with_context(
        fmt::format("the import stopped after {} turns and {} facts, which are kept; run it again "
                    "to go on",
                    report.turns, report.facts_added));
  }
  print_report(shell, report);
  if (!report.note.empty()) {
    shell.note("inferscale: warning: " + report.note);
  }
  if (interrupted()) {
    shell.note(
        "inferscale: interrupted; what is stored is kept: run the same command again to go on");
    return interrupt_exit_code();
  }
  if (!shell.json()) {
    shell.print(capacity_note(*service));
  }
  return report_item_errors(shell, report.errors);
}

}  // namespace

void add_import_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<ImportArgs>();
  root.add(shell,
           {"import", "Read a conversation or an export; each fact is encoded once",
            "inferscale import chat.jsonl --scope user=alice\n"
            "  inferscale import locomo10.json --conversation conv-26 --scope user=conv-26"},
           [&shell, args] { return run_import(shell, *args); })
      .argument("file", args->file, "File to read, - for stdin")
      .choice("--format", args->format, {"auto", "openai", "mem0", "locomo", "inferscale"},
              "How to read it")
      .text("--facts", args->facts_file, "FILE",
            "Ready facts, JSON Lines of {text, event_time, source_turns, metadata}; without it "
            "the turns themselves become facts")
      .text("--conversation", args->conversation, "ID", "LoCoMo: which conversation")
      .text("--mem0-user", args->mem0_user, "NAME", "Mem0: whose memories")
      .flag("--dry-run", args->dry_run, "Export of InferScale: only say what would be done")
      .flag("--salvage", args->salvage,
            "Export of InferScale: take what is whole of a damaged file")
      .flag("--no-wait", args->no_wait, "Store only; the next command encodes");
}

}  // namespace inferscale::cli
