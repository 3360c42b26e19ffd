#pragma once

/// Marks a symbol as part of the public API; everything else is built with hidden visibility.
#if defined(__GNUC__)
#define INFERSCALE_API [[gnu::visibility("default")]]
#else
#define INFERSCALE_API
#endif
