// Notes which basic blocks of the module ran. The compiler calls the probe at each of them
// (-fsanitize-coverage=trace-pc); compiled without that option itself, and linked into the module.
// Read by reach_probe.py.
#include <cstddef>
#include <cstdint>

extern "C" {
extern const char __ehdr_start;  // where the linker put the module's first byte

__attribute__((visibility("default"))) extern unsigned char llmsim_reached[];
__attribute__((visibility("default"))) extern const std::size_t llmsim_reached_size;
unsigned char llmsim_reached[std::size_t{1} << 25];
const std::size_t llmsim_reached_size = sizeof llmsim_reached;

void __sanitizer_cov_trace_pc() {
  const auto offset = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                      reinterpret_cast<std::uintptr_t>(&__ehdr_start);
  if (offset < sizeof llmsim_reached) llmsim_reached[offset] = 1;
}
}
