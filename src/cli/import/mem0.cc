#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <set>

#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

/// The export's own metadata as data; identity keys in it name nobody here.
Result<std::string> metadata_of(const Json& record) {
  Json metadata = Json::object();
  if (const auto found = record.find("metadata"); found != record.end() && !found->is_null()) {
    if (!found->is_object()) {
      return invalid_argument("metadata: expected an object");
    }
    metadata = *found;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::string id, string_member(record, "id"));
  if (!id.empty()) {
    metadata["mem0_id"] = id;
  }
  const auto categories = record.find("categories");
  if (categories != record.end() && categories->is_array() && !metadata.contains("categories")) {
    metadata["categories"] = *categories;
  }
  return metadata.dump();
}

Result<FactInput> read_memory(const Json& record) {
  static constexpr std::array<const char*, 1> kTimeKeys = {"created_at"};
  FactInput fact;
  INFERSCALE_ASSIGN_OR_RETURN(fact.text, string_member(record, "memory"));
  if (single_line(fact.text).empty()) {
    return invalid_argument("memory: empty");
  }
  INFERSCALE_ASSIGN_OR_RETURN(fact.event_time, time_member(record, kTimeKeys));
  INFERSCALE_ASSIGN_OR_RETURN(fact.metadata, metadata_of(record));
  return fact;
}

/// Memories of several people must not end up in one scope.
Status check_users(const std::set<std::string>& users, const std::string& wanted) {
  if (!wanted.empty()) {
    return users.count(wanted) != 0
               ? Status()
               : not_found(fmt::format("no memory of the user \"{}\"; the file has: {}", wanted,
                                       fmt::join(users, ", ")));
  }
  if (users.size() > 1) {
    return invalid_argument(
        fmt::format("the export holds memories of {} users ({}); import them one at a time with "
                    "--mem0-user NAME, each into a --scope of its own",
                    users.size(), fmt::join(users, ", ")));
  }
  return {};
}

}  // namespace

Result<ImportBatch> read_mem0(const ImportDocument& document, const ImportOptions& options) {
  static constexpr std::array<std::string_view, 2> kListKeys = {"results", "memories"};
  INFERSCALE_ASSIGN_OR_RETURN(const ImportDocument memories, unwrap(document, kListKeys));
  ImportBatch batch;
  batch.format = ImportFormat::kMem0;
  std::set<std::string> users;
  read_records(memories, batch, [&](std::size_t index, const Json& record) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const std::string user, string_member(record, "user_id"));
    if (!user.empty()) {
      users.insert(user);
    }
    if (!options.mem0_user.empty() && user != options.mem0_user) {
      return {};
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::string event, string_member(record, "event"));
    if (event == "DELETE" || event == "NONE") {
      ++batch.skipped;
      return {};
    }
    INFERSCALE_ASSIGN_OR_RETURN(FactInput fact, read_memory(record));
    batch.facts.push_back(std::move(fact));
    batch.fact_items.push_back(index);
    return {};
  });
  INFERSCALE_RETURN_IF_ERROR(check_users(users, options.mem0_user));
  return batch;
}

}  // namespace inferscale
