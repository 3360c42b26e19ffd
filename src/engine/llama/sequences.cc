#include "engine/llama/sequences.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>

#include "model/ggml_log.h"

namespace inferscale {
namespace {

/// libllama reports most failures by value, yet allocation and backend errors come as exceptions.
template <typename Call>
Status guarded(const char* what, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return unavailable(fmt::format("{}: {}", what, error.what()));
  } catch (...) {
    return unavailable(fmt::format("{}: unknown exception", what));
  }
}

// What llama_decode returns when it failed and left the cache in a known state.
constexpr std::int32_t kNoCells = 1;
constexpr std::int32_t kAborted = 2;

Status decode_status(std::int32_t code) {
  switch (code) {
    case 0:
      return Status();
    case kNoCells:
      return resource_exhausted("the engine's cache has no free cells; raise context_tokens");
    case kAborted:
      return unavailable("cancelled");
    case -1:
      return internal_error("libllama refused a batch");
    default:
      return unavailable(fmt::format("libllama failed to decode (code {})", code));
  }
}

bool is_cancelled(void* flag) {
  const auto* cancelled = *static_cast<const std::atomic<bool>**>(flag);
  return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
}

llama_context_params context_params(const SequencesOptions& options) {
  const ggml_type type = options.cache_dtype == KvCodec::kF32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_tokens;
  params.n_batch = options.batch_tokens;
  params.n_ubatch = options.batch_tokens;
  params.n_seq_max = options.sequences;
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  // Flash attention keeps values row by row (not transposed), one pool of cells lets sequences
  // share them, and only unquantised rows can be composed.
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = true;
  params.type_k = type;
  params.type_v = type;
  params.offload_kqv = false;
  params.op_offload = false;
  params.no_perf = true;
  return params;
}

}  // namespace

Result<std::unique_ptr<LlamaSequences>> LlamaSequences::create(llama_model* model,
                                                               const SequencesOptions& options) {
  std::unique_ptr<LlamaSequences> self(new LlamaSequences());
  self->options_ = options;
  INFERSCALE_RETURN_IF_ERROR(guarded("creating a llama_context", [&] {
    llama_context_params params = context_params(options);
    params.abort_callback = is_cancelled;
    params.abort_callback_data = &self->cancelled_;
    self->context_.reset(llama_init_from_model(model, params));
    return Status();
  }));
  if (self->context_ == nullptr) {
    return resource_exhausted(
        fmt::format("libllama could not make a context of {} tokens; lower context_tokens",
                    options.context_tokens));
  }
  self->memory_ = llama_get_memory(self->context_.get());
  if (self->memory_ == nullptr) {
    return unsupported("the model has no KV cache");
  }
  self->vocab_size_ = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  self->batch_.emplace(static_cast<std::int32_t>(options.batch_tokens), 1);
  return self;
}

Status LlamaSequences::decode(std::span<const BatchToken> tokens, const LogitsSink& sink) {
  for (std::size_t first = 0; first < tokens.size(); first += options_.batch_tokens) {
    const std::size_t count = std::min<std::size_t>(options_.batch_tokens, tokens.size() - first);
    if (is_cancelled(&cancelled_)) {
      return unavailable("cancelled");
    }
    INFERSCALE_RETURN_IF_ERROR(decode_chunk(tokens.subspan(first, count), first, sink));
  }
  return Status();
}

Status LlamaSequences::decode_chunk(std::span<const BatchToken> tokens, std::size_t first,
                                    const LogitsSink& sink) {
  batch_->clear();
  for (const BatchToken& token : tokens) {
    batch_->add(token.token, token.position, token.sequence, token.logits);
  }
  last_output_ = tokens.back().logits ? batch_->size() - 1 : -1;
  // Stays so when an exception leaves llama_decode.
  broken_ = true;
  return guarded("decoding", [&]() -> Status {
    const CancelledWorkLog log(cancelled_);
    const std::int32_t code = llama_decode(context_.get(), batch_->get());
    broken_ = code != 0 && code != kNoCells && code != kAborted;
    INFERSCALE_RETURN_IF_ERROR(decode_status(code));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!tokens[i].logits || sink == nullptr) {
        continue;
      }
      const float* logits = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(i));
      if (logits == nullptr) {
        return internal_error("libllama gave no logits");
      }
      INFERSCALE_RETURN_IF_ERROR(sink(first + i, {logits, vocab_size_}));
    }
    return Status();
  });
}

void LlamaSequences::share(std::int32_t from, std::int32_t to, std::int32_t begin,
                           std::int32_t end) {
  llama_memory_seq_cp(memory_, from, to, begin, end);
}

void LlamaSequences::remove(std::int32_t sequence, std::int32_t begin, std::int32_t end) {
  llama_memory_seq_rm(memory_, sequence, begin, end);
}

void LlamaSequences::clear() {
  llama_memory_clear(memory_, true);
  broken_ = false;
}

std::int32_t LlamaSequences::last_position(std::int32_t sequence) const {
  return llama_memory_seq_pos_max(memory_, sequence);
}

Status LlamaSequences::read_bytes(std::int32_t sequence, std::size_t size) {
  INFERSCALE_RETURN_IF_ERROR(read_buffer_.resize(size));
  return guarded("reading a sequence's state", [&]() -> Status {
    auto* data = reinterpret_cast<std::uint8_t*>(read_buffer_.bytes().data());
    const std::size_t written = llama_state_seq_get_data(context_.get(), data, size, sequence);
    if (written != size) {
      return data_loss(fmt::format("a sequence state has {} bytes, expected {}", written, size));
    }
    return Status();
  });
}

Result<std::span<const std::byte>> LlamaSequences::read_raw(std::int32_t sequence) {
  std::size_t size = 0;
  INFERSCALE_RETURN_IF_ERROR(guarded("sizing a sequence's state", [&] {
    size = llama_state_seq_get_size(context_.get(), sequence);
    return Status();
  }));
  INFERSCALE_RETURN_IF_ERROR(read_bytes(sequence, size));
  return std::span<const std::byte>(read_buffer_.bytes());
}

Result<StateView> LlamaSequences::read(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                       std::int32_t scratch, const StateSpec& spec) {
  const std::size_t cells = static_cast<std::size_t>(end - begin);
  const std::optional<std::size_t> size = state_bytes(spec, cells);
  if (begin < 0 || end < begin || !size) {
    return invalid_argument(fmt::format("positions [{}, {}) cannot be read", begin, end));
  }
  share(sequence, scratch, begin, end);
  const Status status = read_bytes(scratch, *size);
  remove(scratch, 0, -1);
  INFERSCALE_RETURN_IF_ERROR(status);
  INFERSCALE_ASSIGN_OR_RETURN(StateView view, parse_state(read_buffer_.bytes(), spec));
  if (view.positions.size() != cells) {
    return internal_error(fmt::format("sequence {} holds {} of the positions [{}, {})", sequence,
                                      view.positions.size(), begin, end));
  }
  return view;
}

Status LlamaSequences::write(std::int32_t sequence, std::span<const std::byte> state) {
  return guarded("writing a sequence's state", [&]() -> Status {
    const auto* data = reinterpret_cast<const std::uint8_t*>(state.data());
    const std::size_t taken =
        llama_state_seq_set_data(context_.get(), data, state.size(), sequence);
    if (taken != state.size()) {
      remove(sequence, 0, -1);
      return data_loss(
          fmt::format("libllama took {} of {} bytes of a sequence state", taken, state.size()));
    }
    return Status();
  });
}

}  // namespace inferscale
