#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/import/export_format.h"
#include "cli/import/export_lines.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

/// Cuts the bytes into lines. A last line without its newline was cut off.
class Lines {
 public:
  explicit Lines(std::string_view bytes) : bytes_(bytes) {}
  /// Nothing at the end.
  std::optional<std::string_view> next() {
    if (at_ >= bytes_.size()) {
      return std::nullopt;
    }
    const std::size_t end = bytes_.find('\n', at_);
    whole_ = end != std::string_view::npos;
    const std::string_view line = bytes_.substr(at_, (whole_ ? end : bytes_.size()) - at_);
    at_ += line.size() + 1;
    ++number_;
    return line;
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }  ///< of the last line, from 1
  [[nodiscard]] bool whole() const { return whole_; }             ///< it ended in a newline
  [[nodiscard]] std::size_t at() const { return std::min(at_, bytes_.size()); }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0;
  bool whole_ = false;
};

class ExportReader {
 public:
  ExportReader(std::string_view bytes, const ExportHeader& header, Lines lines, ImportBatch& batch)
      : bytes_(bytes), header_(header), lines_(lines), batch_(batch), body_(lines.at()) {}

  /// Reads to the end; what is wrong with the file as a whole.
  Status run() {
    const Status status = read_lines();
    finish_fact();  // the last one is whole or not whatever the end says
    INFERSCALE_RETURN_IF_ERROR(status);
    return ended_ ? check_counts() : data_loss("its last lines are missing");
  }

  /// Index of the line at which `run` stopped, which is the last one unless something follows it.
  [[nodiscard]] std::uint64_t item() const { return lines_.number() - 1; }

 private:
  /// Errors: kDataLoss when the lines are not those that were written.
  Status read_lines() {
    while (const auto text = lines_.next()) {
      if (ended_) {
        return data_loss(fmt::format("line {}: something follows the end", lines_.number()));
      }
      if (!lines_.whole()) {
        return data_loss(fmt::format("line {} is cut off", lines_.number()));
      }
      const std::size_t begin = static_cast<std::size_t>(text->data() - bytes_.data());
      const Result<ExportLine> line = split_export_line(*text);
      Status status = line.status();
      if (line.ok()) {
        status = line->kind == "end" ? read_end(line->content, begin) : read_item(*line);
      }
      if (!status.ok() && status.code() == StatusCode::kDataLoss) {
        return status;
      }
      if (!status.ok()) {
        refuse_line(status);
      }
    }
    return {};
  }

  /// A fact that has all its versions is whole whatever follows. One that has not ends here: a line
  /// that cannot be read may have begun another fact, whose versions must not become its own.
  void refuse_line(const Status& status) {
    if (fact_ && has_all_versions()) {
      finish_fact();
    }
    fact_broken_ = true;  // versions that follow belong to nothing
    add_error(batch_, item(), status.with_context(fmt::format("line {}", lines_.number())));
  }

  Status read_item(const ExportLine& line) {
    ExportedItems& out = batch_.exported;
    if (line.kind == "version") {
      ++found_.versions;
      return take_version(line.content);
    }
    finish_fact();
    if (line.kind == "turn") {
      ++found_.turns;
      INFERSCALE_ASSIGN_OR_RETURN(TurnView turn, read_exported_turn(line.content, header_.scope));
      out.turns.push_back(std::move(turn));
      out.turn_items.push_back(item());
      return {};
    }
    if (line.kind != "fact") {
      return invalid_argument("expected one of turn, fact, version and end");
    }
    ++found_.facts;
    INFERSCALE_ASSIGN_OR_RETURN(ExportedFactLine fact,
                                read_exported_fact(line.content, header_.scope));
    fact_ = std::move(fact);
    fact_item_ = item();
    return {};
  }

  [[nodiscard]] bool has_all_versions() const {
    return fact_->fact.history.size() == fact_->versions;
  }

  Status take_version(std::string_view content) {
    if (fact_broken_) {
      return {};  // of a fact that was refused, which was reported
    }
    if (!fact_ || has_all_versions()) {
      return invalid_argument("a version that belongs to no fact");
    }
    INFERSCALE_ASSIGN_OR_RETURN(FactHistoryRow row, read_exported_version(content));
    row.event = row.version == 1 ? "ADD" : "UPDATE";
    fact_->fact.history.push_back(std::move(row));
    return {};
  }

  /// A fact is whole when all its versions have come.
  void finish_fact() {
    if (fact_ && !fact_broken_ && has_all_versions()) {
      batch_.exported.facts.push_back(std::move(fact_->fact));
      batch_.exported.fact_items.push_back(fact_item_);
    } else if (fact_) {
      add_error(batch_, fact_item_,
                invalid_argument(
                    fmt::format("line {}: {} of the {} versions of this fact follow it unbroken",
                                fact_item_ + 1, fact_->fact.history.size(), fact_->versions)));
    }
    fact_.reset();
    fact_broken_ = false;
  }

  Status read_end(std::string_view content, std::size_t begin) {
    ended_ = true;
    const Result<ExportEnd> end = read_export_end(content);
    if (!end.ok()) {
      return data_loss("its last line: " + end.status().message());
    }
    if (end->lines != lines_.number() - 2) {
      return data_loss(
          fmt::format("{} lines stand between header and end, not as many as the end says",
                      lines_.number() - 2));
    }
    const Hash128 hash = sha256_128(as_byte_span(bytes_.substr(body_, begin - body_)));
    return hash.to_hex() == end->sha256_128
               ? Status()
               : data_loss("the content is not what was written (checksum)");
  }

  /// The checksum covers what lies between header and end, not the header.
  [[nodiscard]] Status check_counts() const {
    const auto& counts = header_.counts;
    if (counts && counts->turns == found_.turns && counts->facts == found_.facts &&
        counts->versions == found_.versions) {
      return {};
    }
    return data_loss(fmt::format(
        "it has {} turns, {} facts and {} older versions, not as many as its header says",
        found_.turns, found_.facts, found_.versions));
  }

  const std::string_view bytes_;
  const ExportHeader header_;
  Lines lines_;
  ImportBatch& batch_;
  const std::size_t body_;  // where the line after the header begins
  std::optional<ExportedFactLine> fact_;
  std::uint64_t fact_item_ = 0;
  bool fact_broken_ = false;
  ExportCounts found_;  // lines of each kind
  bool ended_ = false;
};

}  // namespace

bool is_export(std::string_view bytes) {
  // Recognised behind a byte order mark, too, so that the reader can name it.
  Lines lines(bytes.substr(bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0));
  const auto first = lines.next();
  if (!first || first->size() > (std::size_t{64} << 10)) {
    return false;
  }
  const Result<std::vector<JsonMember>> members = json_members(*first);
  return members.ok() && std::any_of(members->begin(), members->end(), [](const JsonMember& m) {
           return m.key == "format" && m.value == "\"inferscale\"";
         });
}

Result<ImportBatch> read_export(std::string_view bytes, const ImportOptions& options) {
  if (bytes.size() > kMaxImportBytes) {
    return resource_exhausted("the file is larger than 1 GiB");
  }
  ImportBatch batch;
  batch.format = ImportFormat::kInferscale;
  Lines lines(bytes);
  const auto first = lines.next();
  if (!first) {
    return invalid_argument("the file is empty");
  }
  const Result<ExportHeader> header = read_export_header(*first);
  if (!header.ok()) {
    return header.status().with_context("line 1");
  }
  ExportReader reader(bytes, *header, lines, batch);
  const Status whole = reader.run();
  if (whole.ok()) {
    return batch;
  }
  if (!options.salvage) {
    return data_loss("this export is damaged: " + whole.message() +
                     "; export again, or take what is whole of it with --salvage");
  }
  add_error(batch, reader.item(), whole);
  return batch;
}

}  // namespace inferscale
