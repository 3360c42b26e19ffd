// Runs a fuzz target over files and folders given as arguments, without libFuzzer: any compiler
// can check that the corpus, and what once crashed, is still handled.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void run_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  // In memory of exactly that size, so that AddressSanitizer sees every read past the end.
  const std::vector<std::uint8_t> data(text.begin(), text.end());
  std::fprintf(stderr, "%s\n", path.c_str());  // the last one named is the one that crashed
  LLVMFuzzerTestOneInput(data.data(), data.size());
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      run_file(argv[i]);
      ++files;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      run_file(entry.path());
      ++files;
    }
  }
  std::printf("%d inputs handled\n", files);
  return files > 0 ? 0 : 1;
}
