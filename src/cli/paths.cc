#include "cli/paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace inferscale::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackagedModel = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* kPackagedEmbedder = "all-MiniLM-L6-v2-f16.gguf";

/// An environment variable that is set to something.
std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

fs::path xdg_directory(const char* variable, const char* below_home) {
  if (const std::string base = environment(variable); !base.empty()) {
    return fs::path(base) / "inferscale";
  }
  const std::string home = environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / below_home / "inferscale";
}

fs::path models_directory() {
  const fs::path cache = cache_directory();
  return cache.empty() ? fs::path() : cache / "models";
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

Result<fs::path> named_file(const std::string& path, const char* what, const char* source) {
  if (!is_file(path)) {
    return not_found(fmt::format("no {} file at {} (from {})", what, path, source));
  }
  return fs::path(path);
}

/// GGUF files of the models folder that are not the embedding model.
std::vector<std::string> installed_models(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool embedder = name == kPackagedEmbedder || name.find("MiniLM") != std::string::npos;
    if (at->path().extension() == ".gguf" && !embedder && is_file(at->path())) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<fs::path> data_directory(const std::string& option) {
  if (!option.empty()) {
    return fs::path(option);
  }
  if (const std::string home = environment("INFERSCALE_HOME"); !home.empty()) {
    return fs::path(home);
  }
  fs::path directory = xdg_directory("XDG_DATA_HOME", ".local/share");
  if (directory.empty()) {
    return invalid_argument("no data directory: give --data DIR, or set INFERSCALE_HOME or HOME");
  }
  return directory;
}

fs::path cache_directory() {
  if (const std::string cache = environment("INFERSCALE_CACHE"); !cache.empty()) {
    return cache;
  }
  return xdg_directory("XDG_CACHE_HOME", ".cache");
}

Result<fs::path> find_model(const std::string& option) {
  if (!option.empty()) {
    return named_file(option, "model", "--model");
  }
  if (const std::string named = environment("INFERSCALE_MODEL"); !named.empty()) {
    return named_file(named, "model", "$INFERSCALE_MODEL");
  }
  const fs::path directory = models_directory();
  if (is_file(directory / kPackagedModel)) {
    return directory / kPackagedModel;
  }
  const std::vector<std::string> names = installed_models(directory);
  if (names.size() == 1) {
    return directory / names[0];
  }
  if (names.empty()) {
    return not_found(fmt::format(
        "no model: none in {}; fetch the packaged one with `./run setup`, or give --model FILE "
        "(a GGUF file)",
        directory.empty() ? "the cache directory" : directory.string()));
  }
  return invalid_argument(fmt::format("several models in {}: {}; choose one with --model FILE",
                                      directory.string(), fmt::join(names, ", ")));
}

bool names_model(const std::string& option) {
  return !option.empty() || !environment("INFERSCALE_MODEL").empty();
}

bool names_embedder(const std::string& option) {
  return !option.empty() || !environment("INFERSCALE_EMBEDDER").empty();
}

Result<fs::path> find_embedder(const std::string& option) {
  if (option == "none") {
    return fs::path();
  }
  if (!option.empty()) {
    return named_file(option, "embedding model", "--embedder");
  }
  const std::string named = environment("INFERSCALE_EMBEDDER");
  if (named == "none") {
    return fs::path();
  }
  if (!named.empty()) {
    return named_file(named, "embedding model", "$INFERSCALE_EMBEDDER");
  }
  const fs::path packaged = models_directory() / kPackagedEmbedder;
  return is_file(packaged) ? packaged : fs::path();
}

}  // namespace inferscale::cli
