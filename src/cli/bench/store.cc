#include "cli/bench/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/bench/machine.h"
#include "cli/bench/store_rig.h"
#include "cli/bench/temp_directory.h"
#include "cli/interrupt.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kMaxReads = 1000;

class StoreBench {
 public:
  StoreBench(const StoreBenchOptions& options, StoreRecords records, std::filesystem::path root,
             PlainFile plain, const Progress& progress)
      : options_(options),
        records_(std::move(records)),
        root_(std::move(root)),
        plain_(std::move(plain)),
        progress_(progress) {}

  Status run() {
    INFERSCALE_RETURN_IF_ERROR(open("empty"));
    INFERSCALE_RETURN_IF_ERROR(write());
    INFERSCALE_RETURN_IF_ERROR(restart());
    INFERSCALE_RETURN_IF_ERROR(read("cold"));
    INFERSCALE_RETURN_IF_ERROR(read("warm"));
    return compact();
  }

  Json rows = Json::array();
  Json restarts = Json::object();
  Json space = Json::object();
  [[nodiscard]] std::uint64_t record_bytes() const { return records_.bytes(); }

 private:
  [[nodiscard]] std::filesystem::path directory() const { return root_ / "kv"; }
  [[nodiscard]] double megabytes(std::uint64_t records) const {
    return static_cast<double>(records * records_.bytes()) / 1e6;
  }

  void add_row(const char* what, std::uint64_t records, double ms, double plain_ms) {
    Json row = {{"what", what},
                {"records", records},
                {"ms_per_record", ms / static_cast<double>(records)},
                {"mb_per_s", megabytes(records) * 1000 / ms}};
    if (plain_ms > 0) {
      row["plain_ms_per_record"] = plain_ms / static_cast<double>(records);
      row["plain_mb_per_s"] = megabytes(records) * 1000 / plain_ms;
      row["time_over_plain"] = ms / plain_ms;
    }
    rows.push_back(std::move(row));
  }

  /// Time of `step` for each number; checks for Ctrl-C in between.
  Result<double> timed(const std::vector<std::uint32_t>& numbers,
                       const std::function<Status(std::uint32_t)>& step) {
    double ms = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (interrupted()) {
        return unavailable("stopped; nothing was written");
      }
      progress_("bench", i, numbers.size());
      const Stopwatch watch;
      INFERSCALE_RETURN_IF_ERROR(step(numbers[i]));
      ms += watch.elapsed_ms();
    }
    return ms;
  }

  std::vector<std::uint32_t> every(std::uint32_t stride) const {
    std::vector<std::uint32_t> numbers;
    for (std::uint32_t i = 0; i < options_.records; i += stride) {
      numbers.push_back(i);
    }
    return numbers;
  }

  Status open(const char* how) {
    tier_.reset();
    const Stopwatch watch;
    // Room for all, and for what is kept free.
    const std::uint64_t budget = options_.records * (records_.bytes() + 4096) * 8 / 7 + (1U << 20);
    INFERSCALE_ASSIGN_OR_RETURN(tier_, DiskTier::open(directory(), budget));
    restarts[how] = watch.elapsed_ms();
    return Status();
  }

  Status write() {
    const auto all = every(1);
    Stopwatch watch;
    INFERSCALE_ASSIGN_OR_RETURN(double plain_ms, timed(all, [&](std::uint32_t i) {
                                  return plain_.write(i, records_.record(i)->bytes());
                                }));
    watch.restart();
    INFERSCALE_RETURN_IF_ERROR(plain_.sync());
    plain_ms += watch.elapsed_ms();
    std::vector<RecordKey> evicted;
    INFERSCALE_ASSIGN_OR_RETURN(double ms, timed(all, [&](std::uint32_t i) {
                                  return tier_->put(StoreRecords::key(i), records_.record(i),
                                                    &evicted);
                                }));
    watch.restart();
    INFERSCALE_RETURN_IF_ERROR(tier_->flush());
    ms += watch.elapsed_ms();
    if (!evicted.empty()) {
      return internal_error("records were evicted from a tier that has room for all");
    }
    add_row("put, synced", options_.records, ms, plain_ms);
    const std::uint64_t allocated = allocated_bytes(directory());
    space = {
        {"record_bytes", records_.bytes()},
        {"allocated_bytes_per_record",
         static_cast<double>(allocated) / static_cast<double>(options_.records)},
        {"allocated_over_record",
         static_cast<double>(allocated) / static_cast<double>(options_.records * records_.bytes())},
        {"files", tier_->stats().segments}};
    return Status();
  }

  Status check_all_there() {
    const TierStats stats = tier_->stats();
    return stats.records == options_.records && stats.corrupt == 0
               ? Status()
               : internal_error(fmt::format("{} of {} records after a restart", stats.records,
                                            options_.records));
  }

  Status restart() {
    const auto remove_index = [&] {
      tier_.reset();
      std::error_code ignored;
      std::filesystem::remove(directory() / IndexFile::kName, ignored);
    };
    INFERSCALE_RETURN_IF_ERROR(open("index_warm"));
    INFERSCALE_RETURN_IF_ERROR(check_all_there());
    remove_index();
    INFERSCALE_RETURN_IF_ERROR(open("scan_warm"));
    INFERSCALE_RETURN_IF_ERROR(check_all_there());
    tier_.reset();
    forget_cached(directory());
    INFERSCALE_RETURN_IF_ERROR(open("index_cold"));
    INFERSCALE_RETURN_IF_ERROR(check_all_there());
    remove_index();
    forget_cached(directory());
    INFERSCALE_RETURN_IF_ERROR(open("scan_cold"));
    return check_all_there();
  }

  /// Cold: from the disk. Warm: from the page cache.
  Status read(const std::string& how) {
    const auto numbers = every(std::max(1U, options_.records / kMaxReads));
    if (how == "cold") {
      forget_cached(root_);
    }
    INFERSCALE_ASSIGN_OR_RETURN(const double plain_ms,
                                timed(numbers, [&](std::uint32_t i) { return plain_.read(i); }));
    if (how == "cold") {
      forget_cached(directory());
    }
    INFERSCALE_ASSIGN_OR_RETURN(const double ms, timed(numbers, [&](std::uint32_t i) {
                                  const auto record = tier_->get(StoreRecords::key(i));
                                  INFERSCALE_RETURN_IF_ERROR(record.status());
                                  return *record != nullptr ? Status()
                                                            : internal_error("a record is missing");
                                }));
    add_row(("get, " + how).c_str(), numbers.size(), ms, plain_ms);
    return Status();
  }

  Status compact() {
    std::vector<RecordKey> erased;
    for (const std::uint32_t i : every(1)) {
      if (i % 3 != 0) {  // so that every segment is worth compacting
        erased.push_back(StoreRecords::key(i));
      }
    }
    std::uint64_t removed = 0;
    Stopwatch watch;
    INFERSCALE_RETURN_IF_ERROR(tier_->erase(erased, &removed));
    add_row("erase, zeroed and synced", removed, watch.elapsed_ms(), 0);
    watch.restart();
    INFERSCALE_RETURN_IF_ERROR(tier_->compact());
    add_row("compact: move, wipe", options_.records - removed, watch.elapsed_ms(), 0);
    space["files_after_compaction"] = tier_->stats().segments;
    space["allocated_over_record_after_compaction"] =
        static_cast<double>(allocated_bytes(directory())) /
        static_cast<double>(std::max<std::uint64_t>(tier_->stats().bytes, 1));
    return Status();
  }

  const StoreBenchOptions& options_;
  const StoreRecords records_;
  const std::filesystem::path root_;
  PlainFile plain_;
  const Progress& progress_;
  std::unique_ptr<DiskTier> tier_;
};

std::string store_table(const Json& report, std::size_t width) {
  const auto right = [](const char* title) { return TableColumn{title, Align::kRight}; };
  TextTable table({{"what"},
                   right("records"),
                   right("ms each"),
                   right("MB/s"),
                   right("plain MB/s"),
                   right("x plain time")});
  for (const Json& row : report["rows"]) {
    const auto number = [&](const char* name, int digits) {
      return row.contains(name) ? fmt::format("{:.{}f}", row[name].get<double>(), digits) : "";
    };
    table.add_row({row["what"].get<std::string>(),
                   std::to_string(row["records"].get<std::uint64_t>()), number("ms_per_record", 3),
                   number("mb_per_s", 0), number("plain_mb_per_s", 0),
                   number("time_over_plain", 2)});
  }
  std::string restarts = "ready after a restart, ms:";
  for (const auto& [how, ms] : report["restart_ms"].items()) {
    restarts += fmt::format(" {} {:.0f}", how, ms.get<double>());
  }
  return fmt::format(
      "{}\n{} records of {} bytes; {:.4f} bytes on disk a byte of record\n\n{}\n{}\n",
      report["machine"].get<std::string>(), report["records"].get<std::uint64_t>(),
      report["space"]["record_bytes"].get<std::uint64_t>(),
      report["space"]["allocated_over_record"].get<double>(), table.render(width), restarts);
}

}  // namespace

Result<BenchReport> run_store_bench(const StoreBenchOptions& options, const Progress& progress) {
  const double load = load_average();
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<TempDirectory> directory,
                              TempDirectory::create());
  INFERSCALE_ASSIGN_OR_RETURN(StoreRecords records, StoreRecords::create(options.tokens));
  INFERSCALE_ASSIGN_OR_RETURN(PlainFile plain,
                              PlainFile::create(directory->path() / "plain", records.bytes()));
  StoreBench bench(options, std::move(records), directory->path(), std::move(plain), progress);
  INFERSCALE_RETURN_IF_ERROR(bench.run());
  const Json report = {{"bench", "store"},
                       {"command", options.command},
                       {"machine", machine_description()},
                       {"load_average_before", load},
                       {"load_average_after", load_average()},
                       {"version", INFERSCALE_VERSION},
                       {"date", format_rfc3339(now_us())},
                       {"records", options.records},
                       {"rows", bench.rows},
                       {"restart_ms", bench.restarts},
                       {"space", bench.space}};
  return BenchReport{report.dump(), report.dump(2) + "\n",
                     store_table(report, options.table_width)};
}

}  // namespace inferscale::cli
