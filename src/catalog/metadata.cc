#include "catalog/metadata.h"

#include "base/strict_json.h"
#include "catalog/catalog.h"

namespace inferscale {
namespace {

constexpr int kMaxMetadataDepth = 32;

}  // namespace

Status check_metadata(std::string_view field, std::string_view metadata) {
  return parse_json_object(field, metadata, kMaxMetadataBytes, kMaxMetadataDepth).status();
}

}  // namespace inferscale
