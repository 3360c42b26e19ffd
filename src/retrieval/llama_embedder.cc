#include "retrieval/llama_embedder.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/turn_mutex.h"
#include "base/utf8.h"
#include "model/content_hash.h"
#include "model/gguf_file.h"
#include "model/llama_handles.h"
#include "retrieval/text_chunks.h"

namespace inferscale {
namespace {

// sentence-transformers trains and runs MiniLM on 256 tokens, [CLS] and [SEP] among them; BERT
// itself has 512 positions.
constexpr std::size_t kWindow = 256;
constexpr std::size_t kOverlap = 32;
constexpr std::size_t kSpecialTokens = 2;
// Part of the embedder's id: raise it when the same model would give other vectors for the same
// text.
constexpr int kChunkingVersion = 1;
// Enough for a text of kMaxFactBytes in which every byte is a token.
constexpr std::size_t kMaxChunks = 8192;
// Attention costs the square of a batch, across its texts too: batches of 256, 512 and 1024 tokens
// cost 9.5, 10.0 and 11.5 s of CPU time for 780 facts.
constexpr std::size_t kBatchTokens = kWindow;
constexpr std::size_t kBatchChunks = 64;

struct Chunk {
  std::size_t item = 0;
  std::span<const TokenId> tokens;  // without special tokens
  float* out = nullptr;             // [dim]
};

Status normalise(const float* values, std::size_t dim, float* out) {
  double square = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    square += static_cast<double>(values[i]) * values[i];
  }
  if (!std::isfinite(square) || square <= 0) {
    return internal_error("the embedding model gave a vector without a direction");
  }
  const double scale = 1 / std::sqrt(square);
  for (std::size_t i = 0; i < dim; ++i) {
    out[i] = static_cast<float>(values[i] * scale);
  }
  return Status();
}

class LlamaEmbedder final : public Embedder {
 public:
  LlamaEmbedder(std::string id, LlamaModelPtr model, LlamaContextPtr context)
      : id_(std::move(id)),
        dim_(static_cast<std::size_t>(llama_model_n_embd(model.get()))),
        model_(std::move(model)),
        vocab_(llama_model_get_vocab(model_.get())),
        context_(std::move(context)),
        batch_(kBatchTokens, 1) {}

  const std::string& id() const override { return id_; }
  std::size_t dim() const override { return dim_; }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override;

 private:
  struct Job;

  Result<std::vector<TokenId>> content_tokens(const std::string& text) const;
  Status prepare(const std::string& text, std::size_t item, Job& job) const;
  void run(std::span<const std::string> texts, Job& job);
  void fill_batch(std::span<const Chunk> chunks);
  Status encode(std::span<const Chunk> chunks);

  const std::string id_;
  const std::size_t dim_;
  const LlamaModelPtr model_;
  const llama_vocab* const vocab_;
  TurnMutex mutex_;  // guards context_ and batch_
  const LlamaContextPtr context_;
  LlamaBatch batch_;
};

Result<std::vector<TokenId>> LlamaEmbedder::content_tokens(const std::string& text) const {
  INFERSCALE_RETURN_IF_ERROR(check_text("text", text, kMaxFactBytes));
  INFERSCALE_ASSIGN_OR_RETURN(
      std::vector<TokenId> tokens,
      tokenize(vocab_, text, /*add_special=*/false, /*parse_special=*/false));
  if (tokens.empty()) {
    return invalid_argument("text holds nothing but white space and control characters");
  }
  return tokens;
}

void LlamaEmbedder::fill_batch(std::span<const Chunk> chunks) {
  batch_.clear();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto sequence = static_cast<llama_seq_id>(i);
    llama_pos position = 0;
    batch_.add(llama_vocab_bos(vocab_), position++, sequence, true);
    for (const TokenId token : chunks[i].tokens) {
      batch_.add(token, position++, sequence, true);
    }
    batch_.add(llama_vocab_sep(vocab_), position, sequence, true);
  }
}

Status LlamaEmbedder::encode(std::span<const Chunk> chunks) {
  const std::lock_guard lock(mutex_);
  fill_batch(chunks);
  const std::int32_t code = llama_encode(context_.get(), batch_.get());
  if (code == -2) {
    return resource_exhausted("not enough memory to embed a batch of texts");
  }
  if (code != 0) {
    return internal_error(fmt::format("libllama could not embed a batch of texts (code {})", code));
  }
  for (std::size_t sequence = 0; sequence < chunks.size(); ++sequence) {
    const float* values =
        llama_get_embeddings_seq(context_.get(), static_cast<llama_seq_id>(sequence));
    if (values == nullptr) {
      return internal_error("libllama gave no embedding");
    }
    INFERSCALE_RETURN_IF_ERROR(normalise(values, dim_, chunks[sequence].out));
  }
  return Status();
}

// How many of the chunks fit one batch; at least one always does.
std::size_t batch_size(std::span<const Chunk> chunks) {
  std::size_t tokens = 0;
  std::size_t count = 0;
  while (count < chunks.size() && count < kBatchChunks) {
    tokens += chunks[count].tokens.size() + kSpecialTokens;
    if (tokens > kBatchTokens) {
      break;
    }
    ++count;
  }
  return count;
}

// The work of one call. Tokens and values do not move while chunks point into them.
struct LlamaEmbedder::Job {
  std::vector<std::vector<TokenId>> tokens;  // per text
  std::vector<TextVectors> vectors;          // per text
  std::vector<Status> statuses;              // per text
  std::vector<Chunk> chunks;
};

Status LlamaEmbedder::prepare(const std::string& text, std::size_t item, Job& job) const {
  INFERSCALE_ASSIGN_OR_RETURN(job.tokens[item], content_tokens(text));
  const std::size_t n_tokens = job.tokens[item].size();
  const auto spans = chunk_spans(n_tokens, kWindow - kSpecialTokens, kOverlap);
  if (spans.size() > kMaxChunks) {
    return invalid_argument(
        fmt::format("text has {} tokens in {} chunks: at most {} chunks are embedded", n_tokens,
                    spans.size(), kMaxChunks));
  }
  job.vectors[item] = {id_, dim_, std::vector<float>(spans.size() * dim_)};
  for (std::size_t i = 0; i < spans.size(); ++i) {
    job.chunks.push_back({item, std::span(job.tokens[item]).subspan(spans[i].begin, spans[i].size),
                          job.vectors[item].values.data() + i * dim_});
  }
  return Status();
}

void LlamaEmbedder::run(std::span<const std::string> texts, Job& job) {
  for (std::size_t item = 0; item < texts.size(); ++item) {
    job.statuses[item] = prepare(texts[item], item, job);
  }
  for (std::span<const Chunk> left = job.chunks; !left.empty();) {
    const auto batch = left.first(batch_size(left));
    left = left.subspan(batch.size());
    const Status status = encode(batch);
    for (const Chunk& chunk : batch) {
      if (!status.ok()) {
        job.statuses[chunk.item] = status;
      }
    }
  }
}

std::vector<Result<TextVectors>> LlamaEmbedder::embed(std::span<const std::string> texts) {
  Job job;
  job.tokens.resize(texts.size());
  job.vectors.resize(texts.size());
  job.statuses.resize(texts.size());
  try {
    run(texts, job);
  } catch (const std::bad_alloc&) {
    job.statuses.assign(texts.size(), resource_exhausted("not enough memory to embed these texts"));
  } catch (const std::exception& error) {
    job.statuses.assign(texts.size(),
                        internal_error(fmt::format("embedding failed: {}", error.what())));
  }
  std::vector<Result<TextVectors>> results;
  results.reserve(texts.size());
  for (std::size_t item = 0; item < texts.size(); ++item) {
    if (job.statuses[item].ok()) {
      results.emplace_back(std::move(job.vectors[item]));
    } else {
      results.emplace_back(std::move(job.statuses[item]));
    }
  }
  return results;
}

// Refuses what would load but not embed, before anything is loaded.
Status check_model(const GgufFile& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto stated, file.text("general.architecture"));
  if (const std::string architecture = stated.value_or("(none)"); architecture != "bert") {
    return unsupported(
        fmt::format("{} is of architecture {}, not an embedding model that is supported (bert)",
                    file.path().string(), architecture));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto pooling, file.u32("bert.pooling_type"));
  if (pooling != static_cast<std::uint32_t>(LLAMA_POOLING_TYPE_MEAN)) {
    return unsupported(fmt::format("{} does not use mean pooling, the one that is supported",
                                   file.path().string()));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto positions, file.u32("bert.context_length"));
  if (positions.value_or(0) < kWindow) {
    return unsupported(fmt::format("{} has {} positions; at least {} are needed",
                                   file.path().string(), positions.value_or(0), kWindow));
  }
  return Status();
}

// Half of the cores: threads of libllama wait for each other by spinning, so that on a machine
// whose cores are all busy a question takes seconds with as many threads as cores, and 10 ms with
// fewer.
int default_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency() / 2));
}

llama_context_params context_params(int threads) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kBatchTokens;
  params.n_batch = kBatchTokens;
  params.n_ubatch = kBatchTokens;  // an encoder cannot split a batch
  params.n_seq_max = kBatchChunks;
  params.n_threads = threads > 0 ? threads : default_threads();
  params.n_threads_batch = params.n_threads;
  params.embeddings = true;
  params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
  params.kv_unified = true;
  return params;
}

}  // namespace

Result<std::unique_ptr<Embedder>> open_llama_embedder(const LlamaEmbedderOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(options.model));
  INFERSCALE_RETURN_IF_ERROR(check_model(file));
  INFERSCALE_ASSIGN_OR_RETURN(
      const Hash128 hash,
      file_content_hash(file.descriptor(), options.model, options.cache_directory));
  ensure_llama_backend();
  LlamaModelPtr model(
      llama_model_load_from_file(options.model.c_str(), llama_model_default_params()));
  if (model == nullptr) {
    return data_loss(
        fmt::format("{} cannot be loaded: it is damaged; fetch it again", options.model.string()));
  }
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const auto known = [&](llama_token token) {
    return token >= 0 && token < llama_vocab_n_tokens(vocab);
  };
  if (!known(llama_vocab_bos(vocab)) || !known(llama_vocab_sep(vocab))) {
    return unsupported(
        fmt::format("the vocabulary of {} has no [CLS] or no [SEP]", options.model.string()));
  }
  LlamaContextPtr context(llama_init_from_model(model.get(), context_params(options.threads)));
  if (context == nullptr) {
    return resource_exhausted(fmt::format("not enough memory to run {}", options.model.string()));
  }
  std::string id = fmt::format("gguf-{}-d{}-c{}", hash.to_hex(), llama_model_n_embd(model.get()),
                               kChunkingVersion);
  return std::unique_ptr<Embedder>(
      std::make_unique<LlamaEmbedder>(std::move(id), std::move(model), std::move(context)));
}

}  // namespace inferscale
