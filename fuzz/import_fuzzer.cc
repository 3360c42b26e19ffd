#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/split_text.h"
#include "base/utf8.h"
#include "cli/import/import_formats.h"
#include "reader_choice.h"

/// Any bytes may be given to `import`: they are refused, or every turn and fact that comes out is
/// text in UTF-8 that knows which item of the file it came from.

namespace {

using inferscale::ImportBatch;
using inferscale::Result;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

bool is_text(std::string_view text) {
  return inferscale::find_invalid_utf8(text) == std::string_view::npos;
}

void check(const Result<ImportBatch>& batch) {
  if (!batch.ok()) {
    require(!batch.status().message().empty() && is_text(batch.status().message()));
    return;
  }
  require(batch->turns.size() == batch->turn_items.size());
  require(batch->facts.size() == batch->fact_items.size());
  for (const inferscale::TurnInput& turn : batch->turns) {
    require(is_text(turn.id) && is_text(turn.speaker) && is_text(turn.text));
    require(!turn.id.empty() && !turn.text.empty());
  }
  for (const inferscale::FactInput& fact : batch->facts) {
    require(is_text(fact.text) && is_text(fact.metadata));
  }
  const inferscale::ExportedItems& exported = batch->exported;
  require(exported.turns.size() == exported.turn_items.size());
  require(exported.facts.size() == exported.fact_items.size());
  for (const inferscale::TurnView& view : exported.turns) {
    require(is_text(view.turn.text) && is_text(view.scope.agent) && !view.turn.id.empty());
  }
  for (const inferscale::ExportedFact& fact : exported.facts) {
    require(is_text(fact.fact.text) && is_text(fact.fact.metadata) && !fact.fact.id.empty());
    for (const inferscale::FactHistoryRow& row : fact.history) {
      require(is_text(row.text) && is_text(row.metadata));
    }
  }
  for (const inferscale::ItemError& error : batch->errors) {
    require(is_text(error.message));
  }
}

void check_split(std::string_view text) {
  if (!is_text(text)) {
    return;
  }
  constexpr std::size_t kPieceBytes = 16;
  const auto visible = [](std::string_view part) {
    return std::count_if(part.begin(), part.end(),
                         [](char c) { return c != ' ' && c != '\t' && c != '\r' && c != '\n'; });
  };
  std::ptrdiff_t kept = 0;
  for (const std::string& piece : inferscale::split_text(text, kPieceBytes)) {
    require(!piece.empty() && piece.size() <= kPieceBytes && is_text(piece));
    kept += visible(piece);
  }
  require(kept == visible(text));
}

constexpr std::uint8_t kReaders = 7;

void run_reader(std::uint8_t reader, std::string_view bytes) {
  constexpr inferscale::ImportFormat kFormats[] = {
      inferscale::ImportFormat::kAuto, inferscale::ImportFormat::kOpenAi,
      inferscale::ImportFormat::kMem0, inferscale::ImportFormat::kLocomo,
      inferscale::ImportFormat::kInferscale};
  static_assert(std::size(kFormats) + 2 == kReaders);
  if (reader < std::size(kFormats)) {
    inferscale::ImportOptions options;
    options.format = kFormats[reader];
    // What is whole of a damaged export is read on: nearly all inputs are damaged ones.
    options.salvage = true;
    check(inferscale::parse_import(bytes, options));
  } else if (reader == std::size(kFormats)) {
    check(inferscale::parse_facts_file(bytes));
  } else {
    check_split(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reader_choice::dispatch(data, size, kReaders, run_reader);
  return 0;
}
