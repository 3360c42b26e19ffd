#include "engine/llama/llama_engine.h"

#include <fmt/core.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include "engine/llama/engine_core.h"
#include "engine/llama/llama_text.h"
#include "engine/llama/run.h"

namespace inferscale {
namespace {

/// The queue and the one thread that touches the context.
class LlamaEngine final : public Engine {
 public:
  LlamaEngine(std::unique_ptr<LlamaCore> core, std::uint32_t max_queue)
      : core_(std::move(core)),
        info_(core_->info),
        tokenizer_(core_->model.get()),
        chat_format_(core_->model.get()),
        max_queue_(max_queue),
        thread_([this] { work(); }) {}

  ~LlamaEngine() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  [[nodiscard]] const Tokenizer& tokenizer() const override { return tokenizer_; }
  [[nodiscard]] const ChatFormat& chat_format() const override { return chat_format_; }

  [[nodiscard]] Result<RunResult> run(RunRequest request) override {
    const Stopwatch waiting;
    return submit<Result<RunResult>>([&]() -> Result<RunResult> {
      const double queue_ms = waiting.elapsed_ms();
      if (request.cancelled != nullptr && request.cancelled->load()) {
        return unavailable("cancelled");
      }
      Result<RunResult> result = LlamaRun(*core_, request).execute();
      if (result.ok()) {
        result->timings.queue_ms = queue_ms;
        result->timings.total_ms += queue_ms;
      }
      return result;
    });
  }

  [[nodiscard]] Status drop_session(const std::string& session) override {
    return submit<Status>([&] {
      core_->sessions->drop(session);
      return Status();
    });
  }

 private:
  using Task = std::packaged_task<void()>;

  /// Runs `call` on the engine's thread and waits for it. What it throws becomes a Status, and the
  /// cache is emptied.
  template <typename Answer, typename Call>
  [[nodiscard]] Answer submit(const Call& call) {
    if (std::this_thread::get_id() == thread_.get_id()) {
      return invalid_argument(
          "a callback of a run must not call the engine: it would wait for itself");
    }
    Answer answer = Status(StatusCode::kInternal, "the engine's thread did not answer");
    Task task([&] { answer = guarded<Answer>(call); });
    std::future<void> done = task.get_future();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) {
        return unavailable("the engine is shutting down");
      }
      if (tasks_.size() >= max_queue_) {
        return resource_exhausted(fmt::format(
            "the engine's queue holds its maximum of {} runs; try again, or raise max_queue",
            max_queue_));
      }
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
    done.wait();
    return answer;
  }

  template <typename Answer, typename Call>
  [[nodiscard]] Answer guarded(const Call& call) {
    try {
      return call();
    } catch (const std::exception& error) {
      core_->reset();
      return internal_error(fmt::format("exception in a run: {}", error.what()));
    } catch (...) {
      core_->reset();
      return internal_error("unknown exception in a run");
    }
  }

  void work() {
    for (;;) {
      Task task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) {
          return;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::unique_ptr<LlamaCore> core_;
  EngineInfo info_;
  LlamaTokenizer tokenizer_;
  LlamaChatFormat chat_format_;
  std::uint32_t max_queue_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace

Result<std::unique_ptr<Engine>> open_llama_engine_with_hooks(
    const LlamaEngineOptions& options, std::shared_ptr<LlamaEngineHooks> hooks) {
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<LlamaCore> core,
                              LlamaCore::open(options, std::move(hooks)));
  return std::unique_ptr<Engine>(std::make_unique<LlamaEngine>(std::move(core), options.max_queue));
}

Result<std::unique_ptr<Engine>> open_llama_engine(const LlamaEngineOptions& options) {
  return open_llama_engine_with_hooks(options, std::make_shared<LlamaEngineHooks>());
}

}  // namespace inferscale
