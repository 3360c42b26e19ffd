#include "base/log.h"

#include <memory>
#include <mutex>

namespace inferscale {
namespace {

struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

// Never destroyed: other static objects may log from their destructors.
SinkHolder& holder() {
  static SinkHolder* const instance = new SinkHolder;
  return *instance;
}

}  // namespace

void set_log_sink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  const std::lock_guard<std::mutex> lock(holder().mutex);
  holder().sink.swap(shared);
}

void log_message(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogSink> sink;
  {
    const std::lock_guard<std::mutex> lock(holder().mutex);
    sink = holder().sink;
  }
  if (sink == nullptr) {
    return;
  }
  try {
    (*sink)(level, message);
  } catch (
      ...) {  // A sink must not throw; the caller of the library shall not pay for one that does.
  }
}

}  // namespace inferscale
