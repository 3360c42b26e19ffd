// requantize_gguf IN OUT f16|f32|q8_0: another weight format of a GGUF file, by libllama's own
// quantiser, so that one model can be measured at several precisions (docs/performance.md).
#include <llama.h>

#include <cstdio>
#include <cstring>

#include "model/llama_handles.h"

int main(int argc, char** argv) {
  struct Format {
    const char* name;
    llama_ftype type;
  };
  constexpr Format kFormats[] = {{"f16", LLAMA_FTYPE_MOSTLY_F16},
                                 {"f32", LLAMA_FTYPE_ALL_F32},
                                 {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0}};
  for (const Format& format : kFormats) {
    if (argc == 4 && std::strcmp(argv[3], format.name) == 0) {
      inferscale::ensure_llama_backend();
      llama_model_quantize_params params = llama_model_quantize_default_params();
      params.ftype = format.type;
      params.allow_requantize = true;
      const bool failed = llama_model_quantize(argv[1], argv[2], &params) != 0;
      std::fprintf(stderr,
                   failed ? "requantize_gguf: cannot make %s from %s\n" : "wrote %s from %s\n",
                   argv[2], argv[1]);
      return failed ? 1 : 0;
    }
  }
  std::fprintf(stderr, "usage: requantize_gguf IN.gguf OUT.gguf f16|f32|q8_0\n");
  return 2;
}
