// Which captured CUDA graph a step replays, and what its launches cost the host.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/batch.h"

namespace llmsim {

// vLLM's runtime modes, in the order in which data-parallel ranks agree on the least
// (CUDAGraphMode).
enum class GraphMode : std::uint8_t { kNone, kPiecewise, kFull };
inline constexpr std::size_t kNumGraphModes = 3;

// vLLM's CudagraphDispatcher, resolved; sizes in tokens.
struct GraphRules {
  std::int64_t query = 1;                   // tokens of one decode: 1 + drafts
  std::int64_t largest_decode = 0;          // full graphs of uniform decodes reach so far; 0: none
  std::int64_t largest_mixed = 0;           // graphs of any batch; 0: none
  GraphMode mixed = GraphMode::kPiecewise;  // what those are
  bool mixed_takes_decodes = true;          // decodes beyond largest_decode replay one of those
  std::vector<std::int32_t> padded_decode;  // by tokens; empty: as other batches
  // By pipeline stage: the host's time to launch its kernels in each mode; none: it takes no time.
  std::vector<std::array<Ps, kNumGraphModes>> host_ps;
  Ps prepare_ps = 0;           // the host's time before a stage's first launch
  Ps prepare_sequence_ps = 0;  // and before the first stage's for each sequence of the step
  bool posts_reads = false;    // and while it posts reads of KV (HostWork::posting)

  // Whether a step can take the host time before its first launch.
  bool prepares() const { return prepare_ps > 0 || prepare_sequence_ps > 0 || posts_reads; }
  // Before the first launch of the first stage, or of a later one.
  Ps preparing(const HostWork& work, std::int32_t stage = 0) const {
    const Ps sequences = stage == 0 ? work.sequences * prepare_sequence_ps : 0;
    return prepare_ps + sequences + work.posting;
  }

  // Of all stages together.
  Ps launching(GraphMode mode) const {
    Ps sum = 0;
    for (const auto& stage : host_ps) sum += stage[static_cast<std::size_t>(mode)];
    return sum;
  }

  GraphMode mode(const Features& f) const {
    const bool decodes = decodes_alike(f);
    if (decodes && f.tokens <= largest_decode) return GraphMode::kFull;
    if (decodes && !mixed_takes_decodes) return GraphMode::kNone;
    return f.tokens <= largest_mixed ? mixed : GraphMode::kNone;
  }
  // A rank without work takes part with what others would decode.
  bool decodes_alike(const Features& f) const { return f.sequences == 0 || f.uniform(query); }
};

}  // namespace llmsim
