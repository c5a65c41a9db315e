// A pool of KV of its own for layers with a window, as SGLang has it (SWATokenToKVPoolAllocator).
#pragma once

#include <cstdint>

namespace llmsim {

struct WindowPoolConfig {
  std::int32_t window = 0;  // tokens before the one that attends; 0: there is no such pool
  std::int32_t pages = 0;

  bool on() const { return window > 0; }
};

}  // namespace llmsim
