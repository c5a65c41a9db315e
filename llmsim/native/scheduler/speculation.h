// Speculative decoding as a scheduler sees it: how many drafts a step leaves behind, and how many
// of them hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/counter_rng.h"
#include "base/types.h"

namespace llmsim {

// Whether a draft holds, given that all drafts before it did: a chance for each position, in 2^-53.
// A draw depends on nothing but the seed, the request, and how long its answer was: not on who else
// runs, nor on when.
struct Acceptance {
  std::vector<std::uint64_t> chance;  // beyond its end: none
  std::uint64_t seed = 0;

  static constexpr int kBits = 53;
  std::int32_t accepted(RequestId request, std::int32_t emitted, std::int32_t drafts) const {
    const std::uint64_t stream =
        llmsim::draw(llmsim::draw(seed, static_cast<std::uint64_t>(request)),
                     static_cast<std::uint64_t>(emitted));
    const std::int32_t most = std::min(drafts, static_cast<std::int32_t>(chance.size()));
    for (std::int32_t i = 0; i < most; ++i) {
      if (llmsim::draw(stream, static_cast<std::uint64_t>(i)) >> (64 - kBits) >=
          chance[static_cast<std::size_t>(i)])
        return i;
    }
    return most;
  }
};

// vLLM's speculative_config, resolved.
struct SpeculationConfig {
  std::int32_t tokens = 0;     // drafts after each step; 0: no speculation
  std::int32_t lookahead = 0;  // slots that are allocated ahead for the drafter's KV
  std::vector<std::int32_t>
      tokens_by_sequences;  // drafts by the number of sequences in a step; empty: always `tokens`
  std::uint64_t proposal_chance = std::uint64_t{1}
                                  << Acceptance::kBits;  // that the proposer finds something
  Acceptance acceptance;

  bool on() const { return tokens > 0; }
  std::int32_t drafts_after(std::size_t sequences) const {
    if (tokens_by_sequences.empty()) return tokens;
    return tokens_by_sequences[std::min(sequences, tokens_by_sequences.size() - 1)];
  }
  // A proposer that looks things up may find nothing to propose.
  bool proposes(RequestId request, std::int32_t emitted) const {
    const std::uint64_t stream =
        llmsim::draw(~acceptance.seed, static_cast<std::uint64_t>(request));
    return llmsim::draw(stream, static_cast<std::uint64_t>(emitted)) >> (64 - Acceptance::kBits) <
           proposal_chance;
  }
};

// What became of the drafts, as vLLM's SpecDecodingStats counts: per sequence and step that
// verified any.
struct SpeculationCounters {
  std::int64_t verifications = 0, drafts = 0, accepted = 0, emitted = 0;
  std::vector<std::int64_t> accepted_at;  // by position

  void add(std::int32_t drafted, std::int32_t held) {
    ++verifications;
    drafts += drafted;
    accepted += held;
    if (accepted_at.size() < static_cast<std::size_t>(held))
      accepted_at.resize(static_cast<std::size_t>(held), 0);
    for (std::int32_t i = 0; i < held; ++i) ++accepted_at[static_cast<std::size_t>(i)];
  }
};

}  // namespace llmsim
