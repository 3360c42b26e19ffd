// What every fuzz target asks of the address sanitizer; ASAN_OPTIONS goes before it.

/// allocator_may_return_null: a length of 2^60 must end in bad_alloc, as it does without the
/// sanitizer. The rest is speed: targets that parse text allocate thousands of times an input, and
/// most of the time went into the stack of every allocation, into filling it, and into a quarantine
/// of 256 MiB that no cache holds. A report then names the place that allocated by its innermost
/// frames only; run the input again with ASAN_OPTIONS=malloc_context_size=30 for all of them.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:malloc_context_size=2:max_malloc_fill_size=0:"
         "quarantine_size_mb=4:thread_local_quarantine_size_kb=64";
}
