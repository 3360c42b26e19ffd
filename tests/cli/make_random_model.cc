// make_random_model FILE [FAMILY [NAME]]: writes a small model with random weights for the command
// line's tests; NAME, if given, is put in the file as its family, for models that must be refused.
#include <gguf.h>

#include <cstdio>
#include <string>

#include "support/random_model.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: make_random_model FILE [FAMILY [NAME]]\n");
    return 2;
  }
  inferscale::testing::RandomModelOptions options;
  options.trained_positions = 8192;  // its tokens are bytes: an ordinary prompt is long
  if (argc > 2) {
    options.architecture = argv[2];
  }
  if (argc > 3) {
    const std::string name = argv[3];
    options.edit = [name](gguf_context* file) {
      gguf_set_val_str(file, "general.architecture", name.c_str());
    };
  }
  const inferscale::Status status = inferscale::testing::write_random_model(argv[1], options);
  if (!status.ok()) {
    std::fprintf(stderr, "make_random_model: %s\n", status.to_string().c_str());
    return 1;
  }
  return 0;
}
