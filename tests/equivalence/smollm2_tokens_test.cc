// Text becomes the same tokens in the embedded engine as in vLLM: tests/vllm reads the same file.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/llama/llama_text.h"
#include "equivalence/llama_rig.h"

namespace inferscale::testing {
namespace {

TEST(SmolLm2Tokens, AreThoseOfTheModelFolderForVllm) {
  ensure_llama_backend();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  const LlamaModelPtr model(llama_model_load_from_file(packaged_model().c_str(), params));
  ASSERT_NE(model, nullptr);
  const LlamaTokenizer tokenizer(model.get());

  std::ifstream file(INFERSCALE_SOURCE_DIR "/tests/golden/smollm2-tokens.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  EXPECT_GE(golden.size(), 10U);
  for (const auto& entry : golden.items()) {
    EXPECT_EQ(tokenizer.encode(entry.key(), true).value(),
              entry.value().get<std::vector<TokenId>>())
        << entry.key();
  }
}

}  // namespace
}  // namespace inferscale::testing
