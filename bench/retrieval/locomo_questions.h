#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/import/import_formats.h"
#include "inferscale/status.h"

namespace inferscale::bench {

struct Question {
  std::string text;
  int category = 0;                ///< 1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop
  std::set<std::string> evidence;  ///< turn ids
};

/// A conversation: its observations as facts, and its questions of categories 1 to 4.
struct Conversation {
  std::string id;
  std::vector<FactInput> facts;
  std::vector<Question> questions;
  int without_evidence = 0;  ///< questions left out because they cite no turn
};

/// All conversations of a LoCoMo file. Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<Conversation>> read_conversations(std::string_view bytes);

}  // namespace inferscale::bench
