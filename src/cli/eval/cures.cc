#include "cli/eval/cures.h"

#include <algorithm>
#include <array>

namespace inferscale::cli {
namespace {

/// The first `split` rows of one record and the rest of another of the same tokens.
Result<RecordPtr> splice(const RecordPtr& first, const RecordPtr& rest, std::uint32_t split) {
  if (split >= first->n_tokens()) {
    return first;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr head, slice_record(*first, 0, split));
  INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr tail, slice_record(*rest, split, rest->n_tokens()));
  return join_records(std::array{head, tail});
}

/// Computes tokens [begin, end) of a fact again, behind the header and `before`, which stand in the
/// prompt ahead of them.
Result<RecordPtr> recompute(const CureInput& input, const std::vector<RecordPtr>& before,
                            const Record& fact, std::uint32_t begin, std::uint32_t end) {
  RunRequest run;
  run.plan.push_back(input.header);
  auto at = static_cast<std::uint32_t>(input.header.tokens.size());
  const auto place = [&](const RecordPtr& record) {
    run.plan.push_back({{record->token_ids().begin(), record->token_ids().end()}, Lease(record)});
    at += record->n_tokens();
  };
  std::for_each(before.begin(), before.end(), place);
  if (begin > 0) {
    INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr own, slice_record(fact, 0, begin));
    place(own);
  }
  Branch branch;
  const auto tokens = fact.token_ids();
  branch.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
  branch.captures.push_back({at, at + (end - begin), fact.meta()});
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, input.engine.run(std::move(run)));
  RecordPtr record = result.branches.front().records.front();
  if (record == nullptr || result.tokens_injected != at) {
    return unavailable("the engine could not compute a fact's tokens again");
  }
  return record;
}

/// In prompt order: what comes later sees what was computed again.
Result<std::vector<RecordPtr>> recompute_all(const CureInput& input, std::uint32_t count,
                                             bool first) {
  std::vector<RecordPtr> done;
  for (const RecordPtr& fact : input.records) {
    const std::uint32_t size = fact->n_tokens();
    const std::uint32_t part = std::min(count, size);
    const std::uint32_t begin = first ? 0 : size - part;
    INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr again,
                                recompute(input, done, *fact, begin, begin + part));
    std::vector<RecordPtr> parts;
    if (begin > 0) {
      INFERSCALE_ASSIGN_OR_RETURN(RecordPtr head, slice_record(*fact, 0, begin));
      parts.push_back(std::move(head));
    }
    parts.push_back(again);
    if (begin + part < size) {
      INFERSCALE_ASSIGN_OR_RETURN(RecordPtr tail, slice_record(*fact, begin + part, size));
      parts.push_back(std::move(tail));
    }
    INFERSCALE_ASSIGN_OR_RETURN(RecordPtr joined, join_records(parts));
    done.push_back(std::move(joined));
  }
  return done;
}

}  // namespace

Result<std::vector<RecordPtr>> apply_cure(const EvalArm& arm, const CureInput& input) {
  const auto count = static_cast<std::uint32_t>(arm.amount);
  if (arm.cure == Cure::kFirst || arm.cure == Cure::kLast) {
    return recompute_all(input, count, arm.cure == Cure::kFirst);
  }
  std::vector<RecordPtr> done;
  for (std::size_t i = 0; i < input.records.size(); ++i) {
    Result<RecordPtr> record = input.records[i];
    if (arm.cure == Cure::kScale) {
      record = scale_keys(*input.records[i], static_cast<float>(arm.amount));
    } else if (arm.cure == Cure::kJointFirst) {
      record = splice(input.joint.at(i), input.records[i], count);
    } else if (arm.cure == Cure::kJointRest) {
      record = splice(input.records[i], input.joint.at(i), count);
    }
    INFERSCALE_ASSIGN_OR_RETURN(RecordPtr made, std::move(record));
    done.push_back(std::move(made));
  }
  return done;
}

}  // namespace inferscale::cli
