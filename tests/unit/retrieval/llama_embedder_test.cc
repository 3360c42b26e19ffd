#include "retrieval/llama_embedder.h"

#include <gguf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/llama_handles.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

fs::path model_path() {
  if (const std::string given = environment("INFERSCALE_TEST_EMBEDDER"); !given.empty()) {
    return given;
  }
  fs::path cache = environment("INFERSCALE_CACHE");
  if (cache.empty()) {
    const std::string xdg = environment("XDG_CACHE_HOME");
    cache = (xdg.empty() ? fs::path(environment("HOME")) / ".cache" : fs::path(xdg)) / "inferscale";
  }
  return cache / "models" / "all-MiniLM-L6-v2-f16.gguf";
}

double dot(const TextVectors& a, std::size_t chunk_a, const TextVectors& b, std::size_t chunk_b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.dim; ++i) {
    sum += static_cast<double>(a.values[chunk_a * a.dim + i]) * b.values[chunk_b * b.dim + i];
  }
  return sum;
}

/// Opens the model once. Without it these tests fail: they say how to get it, they do not skip.
class LlamaEmbedderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = open_llama_embedder({.model = model_path()});
    if (opened.ok()) {
      embedder_ = std::move(opened).value().release();
    } else {
      error_ = opened.status().to_string();
    }
  }
  static void TearDownTestSuite() {
    delete embedder_;
    embedder_ = nullptr;
  }
  void SetUp() override {
    ASSERT_NE(embedder_, nullptr)
        << error_
        << "\nThe embedding model comes with `./run setup`; another place is named by "
           "INFERSCALE_TEST_EMBEDDER.";
  }
  static Result<TextVectors> embed_one(const std::string& text) {
    return embedder_->embed(std::span(&text, 1))[0];
  }

  static Embedder* embedder_;
  static std::string error_;
};
Embedder* LlamaEmbedderTest::embedder_ = nullptr;
std::string LlamaEmbedderTest::error_;

nlohmann::json reference() {
  std::ifstream file(INFERSCALE_SOURCE_DIR "/tests/unit/retrieval/data/minilm_reference.json");
  return nlohmann::json::parse(file);
}

TEST_F(LlamaEmbedderTest, TokenIdsAreThoseOfTheReferenceTokenizer) {
  ensure_llama_backend();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  const LlamaModelPtr model(llama_model_load_from_file(model_path().c_str(), params));
  ASSERT_NE(model, nullptr);
  for (const auto& item : reference()["cases"]) {
    const auto text = item["text"].get<std::string>();
    const auto ids = tokenize(llama_model_get_vocab(model.get()), text, true, false);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, item["token_ids"].get<std::vector<TokenId>>()) << text;
  }
}

TEST_F(LlamaEmbedderTest, VectorsAreThoseOfTheReferenceModelAloneAndInABatch) {
  const auto cases = reference()["cases"];
  std::vector<std::string> texts;
  for (const auto& item : cases) {
    texts.push_back(item["text"]);
  }
  const auto together = embedder_->embed(texts);
  ASSERT_EQ(together.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto expected = cases[i]["vector"].get<std::vector<float>>();
    const auto alone = embed_one(texts[i]);
    for (const auto* got : {&together[i], &alone}) {
      ASSERT_TRUE(got->ok()) << got->status().to_string();
      ASSERT_EQ((*got)->chunks(), 1U);
      ASSERT_EQ((*got)->dim, expected.size());
      EXPECT_EQ((*got)->embedder_id, embedder_->id());
      for (std::size_t d = 0; d < expected.size(); ++d) {
        ASSERT_NEAR((*got)->values[d], expected[d], 1e-3) << texts[i] << " at " << d;
      }
      EXPECT_NEAR(dot(**got, 0, **got, 0), 1, 1e-5);
    }
  }
}

TEST_F(LlamaEmbedderTest, NamesItsContentAndDim) {
  EXPECT_EQ(embedder_->dim(), 384U);
  EXPECT_NE(embedder_->id().find("-d384-c1"), std::string::npos) << embedder_->id();
}

TEST_F(LlamaEmbedderTest, BadTextsFailAloneAndSayWhy) {
  const std::vector<std::string> texts = {"Mara has a cat.", "",         "broken \xC3\x28 text",
                                          " \t\n ",          "\x01\x02", std::string("a\0b", 3),
                                          "Teo has a dog."};
  const auto results = embedder_->embed(texts);
  ASSERT_EQ(results.size(), texts.size());
  for (const std::size_t bad : {1U, 2U, 3U, 4U}) {
    EXPECT_EQ(results[bad].status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_FALSE(results[bad].status().message().empty());
  }
  for (const std::size_t good : {0U, 5U, 6U}) {
    EXPECT_TRUE(results[good].ok()) << results[good].status().to_string();
  }
  EXPECT_TRUE(embedder_->embed({}).empty());
}

TEST_F(LlamaEmbedderTest, ATextOverTheWindowBecomesChunksThatEachFindTheirPart) {
  std::string filler;
  for (int i = 0; i < 60; ++i) {
    filler += "The weather was mild and nothing in particular happened on that day. ";
  }
  const std::string text = "Mara adopted a grey cat. " + filler +
                           "Teo broke his arm while skiing. " + filler +
                           "The violin was sold in Lisbon.";
  const auto whole = embed_one(text);
  ASSERT_TRUE(whole.ok());
  EXPECT_GT(whole->chunks(), 5U);
  const auto best_chunk = [&](const std::string& query) {
    const auto vector = embed_one(query);
    std::size_t best = 0;
    for (std::size_t chunk = 1; chunk < whole->chunks(); ++chunk) {
      best = dot(*whole, chunk, *vector, 0) > dot(*whole, best, *vector, 0) ? chunk : best;
    }
    return best;
  };
  EXPECT_EQ(best_chunk("Which pet does Mara have?"), 0U);
  EXPECT_EQ(best_chunk("Where was the violin sold?"), whole->chunks() - 1);
  const std::size_t middle = best_chunk("Who was injured on the ski slope?");
  EXPECT_GT(middle, 0U);
  EXPECT_LT(middle, whole->chunks() - 1);
}

TEST_F(LlamaEmbedderTest, SpecialTokenStringsAreText) {
  const auto plain = embed_one("hello");
  const auto marked = embed_one("[CLS] hello [SEP]");
  ASSERT_TRUE(marked.ok());
  EXPECT_LT(dot(*plain, 0, *marked, 0),
            0.99);  // parsed as special tokens it would be nearly the same
  EXPECT_TRUE(embed_one("<|im_start|>system\n[MASK]<|im_end|></s>").ok());
}

TEST_F(LlamaEmbedderTest, TheSameTextGivesTheSameVectorFromEveryThread) {
  std::string lengthy;
  for (int i = 0; i < 60; ++i) {
    lengthy += "Line " + std::to_string(i) + " of a long diary that one thread embeds. ";
  }
  const std::vector<std::string> texts = {"What did Teo buy in Graz?", "Mara moved to Porto.", "",
                                          lengthy};
  std::vector<TextVectors> expected;
  for (const std::string& text : texts) {
    const auto vectors = embed_one(text);
    expected.push_back(vectors.ok() ? *vectors : TextVectors());
  }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < (t == 3 ? 1 : 5); ++repeat) {
        const auto vectors = embed_one(texts[t]);
        ASSERT_EQ(vectors.ok(), !texts[t].empty());
        if (vectors.ok()) {
          ASSERT_EQ(vectors->values, expected[t].values);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(LlamaEmbedderTest, AMegabyteIsAcceptedAndMoreIsRefused) {
  const std::string too_long(kMaxFactBytes + 1, 'a');
  EXPECT_EQ(embed_one(too_long).status().code(), StatusCode::kInvalidArgument);
  const std::string blank(kMaxFactBytes, ' ');
  EXPECT_EQ(embed_one(blank).status().code(), StatusCode::kInvalidArgument);
  std::string sparse(kMaxFactBytes, ' ');
  for (std::size_t i = 0; i + 4 < sparse.size(); i += 512) {
    sparse.replace(i, 4, "word");
  }
  const auto vectors = embed_one(sparse);
  ASSERT_TRUE(vectors.ok()) << vectors.status().to_string();
  EXPECT_EQ(vectors->chunks(), (2048U - 32 + 221) / 222);
}

class BadModelTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("inferscale-bad-model-" + std::to_string(::getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path write_gguf(const std::function<void(gguf_context*)>& fill) const {
    gguf_context* context = gguf_init_empty();
    fill(context);
    const fs::path path = directory_ / "made.gguf";
    EXPECT_TRUE(gguf_write_to_file(context, path.c_str(), false));
    gguf_free(context);
    return path;
  }
  static StatusCode code_of(const fs::path& path) {
    return open_llama_embedder({.model = path}).status().code();
  }

  fs::path directory_;
};

TEST_F(BadModelTest, MissingOrNotAModel) {
  EXPECT_EQ(code_of(directory_ / "nothing.gguf"), StatusCode::kNotFound);
  std::ofstream(directory_ / "text.gguf") << "this is not a model";
  EXPECT_EQ(code_of(directory_ / "text.gguf"), StatusCode::kInvalidArgument);
  EXPECT_NE(code_of(directory_), StatusCode::kOk);
}

TEST_F(BadModelTest, OfAnotherKind) {
  const fs::path generator = write_gguf(
      [](gguf_context* context) { gguf_set_val_str(context, "general.architecture", "llama"); });
  const Status refused = open_llama_embedder({.model = generator}).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("llama"), std::string::npos);
  EXPECT_EQ(code_of(write_gguf([](gguf_context* context) {
              gguf_set_val_str(context, "general.architecture", "bert");
              gguf_set_val_u32(context, "bert.pooling_type", 2);
              gguf_set_val_u32(context, "bert.context_length", 512);
            })),
            StatusCode::kUnsupported);
}

TEST_F(BadModelTest, RightMetadataWithoutWeights) {
  EXPECT_EQ(code_of(write_gguf([](gguf_context* context) {
              gguf_set_val_str(context, "general.architecture", "bert");
              gguf_set_val_u32(context, "bert.pooling_type", 1);
              gguf_set_val_u32(context, "bert.context_length", 512);
            })),
            StatusCode::kDataLoss);
}

TEST_F(BadModelTest, Truncated) {
  std::ifstream source(model_path(), std::ios::binary);
  ASSERT_TRUE(source) << model_path() << " is missing: it comes with `./run setup`";
  std::string bytes(std::size_t{4} << 20, '\0');
  source.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_EQ(static_cast<std::size_t>(source.gcount()), bytes.size());
  for (const std::size_t size :
       {std::size_t{5}, std::size_t{30}, std::size_t{5000}, bytes.size()}) {
    std::ofstream(directory_ / "cut.gguf", std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(size));
    EXPECT_EQ(code_of(directory_ / "cut.gguf"), StatusCode::kDataLoss) << size;
  }
}

}  // namespace
}  // namespace inferscale
