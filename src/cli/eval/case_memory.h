#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/eval/dataset.h"
#include "memory/header_record.h"
#include "memory/service.h"
#include "memory/service_core.h"

namespace inferscale::cli {

/// What encoding a case's facts under a context took, and what it ties together.
struct EncodeCost {
  std::uint64_t facts = 0;
  std::uint64_t own_tokens = 0;
  std::uint64_t prefilled_tokens = 0;
  double ms = 0;
  double reach = 0;  ///< other facts' records that go when one fact is deleted: the mean
};

/// A case's facts in a memory of their own, encoded under one context as the product does it.
/// Facts are named by their index in the case. Not thread-safe.
class CaseMemory {
 public:
  /// Opens or creates `directory`; takes the facts in. Borrows the case. Errors: those of
  /// MemoryService; kInvalidArgument (a fact that is too long for one line, a case without facts).
  [[nodiscard]] static Result<std::unique_ptr<CaseMemory>> open(
      const MemoryOptions& options, const ServiceDependencies& dependencies, const EvalCase& data,
      const std::filesystem::path& directory, const std::string& context);

  /// Encodes what is not encoded yet; the cost is what this call took. Errors: kUnavailable
  /// (cancelled; a fact could not be encoded).
  [[nodiscard]] Result<EncodeCost> encode(const WorkControl& control);
  /// All facts that retrieval finds, best first.
  [[nodiscard]] Result<std::vector<std::size_t>> rank(const std::string& question);
  /// One ready lease for each fact. Errors: kUnavailable when a record is not there: an arm that
  /// fell back to text would mislead.
  [[nodiscard]] Result<std::vector<Lease>> lease(std::span<const std::size_t> facts);
  /// The header's record, captured if need be.
  [[nodiscard]] Result<Segment> header();

  /// Facts that say the same are one.
  [[nodiscard]] std::size_t distinct_facts() const { return index_.size(); }
  [[nodiscard]] const EngineParts& parts() const { return *parts_; }
  /// Token ids of the facts' lines.
  [[nodiscard]] const std::vector<std::vector<TokenId>>& lines() const { return lines_; }

 private:
  CaseMemory() = default;
  Status take_in(const EvalCase& data);

  ServiceCore* core_ = nullptr;  // owned by service_
  std::unique_ptr<Service> service_;
  EngineParts* parts_ = nullptr;
  std::vector<FactRef> facts_;
  std::map<std::string, std::size_t> index_;  // by id; of facts that say the same, the first
  std::vector<Hash128> scopes_;
  std::vector<std::vector<TokenId>> lines_;
};

}  // namespace inferscale::cli
