#pragma once

#include <string>
#include <vector>

#include "catalog/catalog.h"

namespace inferscale {

/// At most two names of whom a scope tells, in the order in which they first came: the speakers of
/// the most turns; where no turn names its speaker, the words that most of its latest 256 facts
/// begin with, as far as they look like a name (a capital letter and letters behind it; no article
/// or pronoun). Each is one line of at most 40 bytes. Same catalog, same names.
[[nodiscard]] Result<std::vector<std::string>> scope_names(Catalog& catalog, const Scope& scope);

/// The name that a fact begins with ("Ana's dog is ill" gives "Ana"), or nothing.
[[nodiscard]] std::string leading_name(std::string_view text);

}  // namespace inferscale
