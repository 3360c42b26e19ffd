#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/eval/case_memory.h"
#include "cli/eval/record_edit.h"

namespace inferscale::cli {

/// What an arm did with one question.
struct QuestionResult {
  std::string case_id;
  std::string question_id;
  std::string category;
  std::string arm;  ///< EvalArm::name
  /// By metric (docs/accuracy.md); one that does not apply is not there.
  std::map<std::string, double> values;
  std::string answer;   ///< stays in the work directory: it may quote the data set
  std::string verdict;  ///< "true", "false", "unparsed"; empty without a judge
};

/// How far the rows of a question's injected facts are from those of a joint prefill, by layer and
/// position in the fact; the last column holds all later positions.
struct RowComparison {
  std::string case_id;
  std::string question_id;
  std::string context;
  RowDistances distances;
};

struct EncodeResult {
  std::string case_id;
  std::string context;
  EncodeCost cost;
};

/// Where a question's evidence stood in plain retrieval: the share of it among the first k, by k.
struct RecallResult {
  std::string case_id;
  std::string question_id;
  std::map<std::string, double> by_k;
};

/// Results of an evaluation as they come, one line of JSON each, so that one that was cut off goes
/// on where it was. Thread-safe, but for the lists: nobody may add while they are read.
class ResultLog {
 public:
  /// Opens or creates the file. `identity` says what all results depend on (model, settings);
  /// a last line that was cut off is dropped. Errors: kConflict when the file holds results of
  /// something else or another evaluation has it open, kDataLoss (not such a file), kUnavailable
  /// (I/O).
  [[nodiscard]] static Result<std::unique_ptr<ResultLog>> open(const std::filesystem::path& path,
                                                               const std::string& identity);

  /// Notes what a case consists of. Errors: kConflict when the log has results of a case of this id
  /// with other facts or questions, kUnavailable (I/O).
  Status open_case(const std::string& case_id, const std::string& digest);

  [[nodiscard]] bool has(const std::string& case_id, const std::string& question_id,
                         const std::string& arm) const;
  [[nodiscard]] bool has_rows(const std::string& case_id, const std::string& question_id,
                              const std::string& context) const;
  [[nodiscard]] bool has_encoding(const std::string& case_id, const std::string& context) const;

  /// Errors: kUnavailable (I/O; nothing after it is kept).
  Status add(QuestionResult result);
  Status add(RowComparison rows);
  Status add(EncodeResult encoding);
  /// Once for each question.
  Status add(RecallResult recall);

  [[nodiscard]] const std::vector<QuestionResult>& results() const { return results_; }
  [[nodiscard]] const std::vector<RowComparison>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<EncodeResult>& encodings() const { return encodings_; }
  [[nodiscard]] const std::vector<RecallResult>& recalls() const { return recalls_; }

 private:
  ResultLog() = default;
  Status read(std::string_view bytes, const std::string& identity);
  Status take(std::string_view line);
  [[nodiscard]] bool knows(const std::string& key) const;
  Status write(const std::string& line);  // REQUIRES: mutex_ is held, but while opening

  mutable std::mutex mutex_;
  std::optional<FileLock> lock_;  // beside the file: one evaluation at a time
  std::filesystem::path path_;
  std::ofstream out_;
  std::vector<QuestionResult> results_;
  std::set<std::string> known_;
  std::map<std::string, std::string> digests_;  // by case
  std::vector<RowComparison> rows_;
  std::vector<EncodeResult> encodings_;
  std::vector<RecallResult> recalls_;
};

}  // namespace inferscale::cli
