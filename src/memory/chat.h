#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "inferscale/memory.h"
#include "memory/answerer.h"
#include "memory/service_core.h"

namespace inferscale {

/// A conversation whose tokens stay in the engine's cache (architecture §3, append-only). When a
/// turn has been answered, the fixed tokens up to where the next turn's facts will stand are
/// prefilled too (parking), so that the next turn injects onto an unbroken prefix.
class ServiceChat final : public Chat {
 public:
  ServiceChat(ServiceCore& core, Answerer& answerer, const ChatOptions& options,
              std::string session);
  ~ServiceChat() override;

  Result<AskReply> say(const std::string& message,
                       const std::function<bool(std::string_view)>& on_text,
                       const std::atomic<bool>* cancelled) override;

 private:
  Status drop_erased_facts(FallbackCounter& fallbacks);
  Status drop_updated_facts();
  Result<AskReply> answer(EngineParts& parts, const std::string& message,
                          const std::function<bool(std::string_view)>& on_text,
                          const std::atomic<bool>* cancelled);
  Status park(EngineParts& parts);
  void restart();
  Result<PreparedPrompt> prepare(EngineParts& parts, const std::string& message,
                                 FallbackCounter& erased);
  RunRequest make_run(EngineParts& parts, PreparedPrompt& prompt, PrefixSegment& header) const;

  ServiceCore& core_;
  Answerer& answerer_;
  ChatOptions options_;
  std::string session_;
  AnswerRegistry::Use use_;
  std::vector<TokenId> history_;  ///< all tokens so far, up to and with the parked link
  std::map<std::string, std::uint32_t>
      in_context_;  ///< fact id → version that stands in the history
};

}  // namespace inferscale
