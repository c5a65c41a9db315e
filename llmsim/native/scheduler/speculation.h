// Speculative decoding as a scheduler sees it: how many drafts a step leaves behind, and how many
// of them hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
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
    const auto most = std::min(drafts, static_cast<std::int32_t>(chance.size()));
    return held(request, emitted, most, chance);
  }
  // The same with other chances, of which the last one holds for all further positions.
  std::int32_t held(RequestId request, std::int32_t emitted, std::int32_t drafts,
                    std::span<const std::uint64_t> chances) const {
    const std::uint64_t stream =
        llmsim::draw(llmsim::draw(seed, static_cast<std::uint64_t>(request)),
                     static_cast<std::uint64_t>(emitted));
    for (std::int32_t i = 0; i < drafts; ++i) {
      const auto index = std::min(static_cast<std::size_t>(i), chances.size() - 1);
      if (llmsim::draw(stream, static_cast<std::uint64_t>(i)) >> (64 - kBits) >= chances[index])
        return i;
    }
    return drafts;
  }
};

// What a trace says of the drafts of its requests, by row; an empty part says nothing.
struct RequestSpeculation {
  std::vector<std::int32_t> depth;            // most drafts of a verification; -1: no limit
  std::vector<std::int64_t> chance_offsets;   // of each row's own chances,
  std::vector<std::uint64_t> chances;         // as those of Acceptance
  std::vector<std::int64_t> counts_offsets;   // of each row's recorded verifications:
  std::vector<std::int32_t> accepted_counts;  // the drafts that held

  std::span<const std::uint64_t> chances_of(RequestId request) const {
    return part(chance_offsets, chances, request);
  }
  std::span<const std::int32_t> counts_of(RequestId request) const {
    return part(counts_offsets, accepted_counts, request);
  }

 private:
  // A row's part of a column.
  template <typename T>
  static std::span<const T> part(const std::vector<std::int64_t>& offsets,
                                 const std::vector<T>& values, RequestId request) {
    if (offsets.empty()) return {};
    const auto begin = static_cast<std::size_t>(offsets[at(request)]);
    const auto end = static_cast<std::size_t>(offsets[at(request) + 1]);
    return std::span(values).subspan(begin, end - begin);
  }
};

// vLLM's speculative_config, resolved.
struct SpeculationConfig {
  std::int32_t tokens = 0;     // drafts after each step; 0: no speculation
  std::int32_t lookahead = 0;  // slots that are allocated ahead for the drafter's KV
  // Tokens behind a part of a prompt that the modules of a head read, each one further than the
  // one before it: a prompt is not cut so close to its end.
  std::int32_t prompt_lookahead = 0;
  std::vector<std::int32_t>
      tokens_by_sequences;  // drafts by the number of sequences in a step; empty: always `tokens`
  std::uint64_t proposal_chance = std::uint64_t{1}
                                  << Acceptance::kBits;  // that the proposer finds something
  Acceptance acceptance;
  std::shared_ptr<const RequestSpeculation> requests = nullptr;  // null: all are alike

  // How many of the drafts hold that follow the request's `emitted` tokens, in its verification
  // number `nth`, from 0: as recorded, else by the request's own chances, else by the group's.
  std::int32_t accepted(RequestId request, std::int32_t emitted, std::int32_t drafts,
                        std::int32_t nth) const {
    if (requests != nullptr) {
      const std::span<const std::int32_t> counts = requests->counts_of(request);
      if (at(nth) < counts.size()) return std::min(drafts, counts[at(nth)]);
      const std::span<const std::uint64_t> chances = requests->chances_of(request);
      if (!chances.empty()) return acceptance.held(request, emitted, drafts, chances);
    }
    return acceptance.accepted(request, emitted, drafts);
  }
  // Of so many drafts, those that a request takes.
  std::int32_t drafts_of(RequestId request, std::int32_t drafts) const {
    if (requests == nullptr || requests->depth.empty()) return drafts;
    const std::int32_t depth = requests->depth[at(request)];
    return depth < 0 ? drafts : std::min(drafts, depth);
  }

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
