// Small traces to measure with: one kind of collective, messages, or compute, repeated.
#pragma once

#include <cstdint>
#include <string>

namespace astra_sim::cli {

struct Microbenchmark {
  std::string kind;  // all-reduce, ..., barrier, send-recv, compute
  std::uint32_t npus = 0;
  std::uint64_t bytes = 1 << 20;
  std::uint64_t count = 1;   // repetitions, one after another
  std::uint64_t micros = 0;  // of a compute node before each repetition
  std::uint32_t group = 0;   // pg_name; 0: all NPUs
  bool gzip = false;
  std::string prefix;  // writes PREFIX.<npu>.et
};

// Throws model::InputError for an unknown kind or a file that cannot be written.
void generate(const Microbenchmark& benchmark);
std::string microbenchmark_kinds();

}  // namespace astra_sim::cli
