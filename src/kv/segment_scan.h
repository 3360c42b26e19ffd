#pragma once

#include <cstdint>
#include <vector>

#include "base/file_system.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "kv/segment_format.h"

namespace inferscale {

/// One entry as a scan finds it.
struct ScannedEntry {
  segment_format::EntryHeader header;
  std::uint64_t offset = 0;
  Hash128 scope;  ///< of the record, when it is sound
  double cost_tokens = 0;
  bool sound = false;  ///< live, and the record's fixed header fits the entry
};

/// Bytes between entries that are no entry.
struct ScannedGap {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct SegmentScan {
  std::vector<ScannedEntry> entries;  ///< in order of offset, those that are not live too
  std::vector<ScannedGap> gaps;       ///< damaged headers and what followed them
  std::uint64_t end = 0;              ///< behind the last entry; what follows is a torn tail
};

/// Reads the headers of a segment's entries and of their records, no payload. Behind damage it
/// looks for the next entry. Changes nothing. Errors: kDataLoss (no segment, another version or
/// number), kUnavailable (I/O: nothing can be said).
[[nodiscard]] Result<SegmentScan> scan_segment(const File& file, std::uint64_t number);

}  // namespace inferscale
