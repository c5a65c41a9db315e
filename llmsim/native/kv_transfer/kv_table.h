// What of a prompt's KV moves between two layouts, in bytes, and how long hosts post its reads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Layers that keep the same: of every token, or of those in the last `tail_blocks` blocks of the
// prompt (layers with a sliding window), so many bytes per token and layer; or one state per layer,
// once it is that of the whole prompt.
struct KvPart {
  std::vector<std::int32_t> layers;  // ascending
  std::int64_t bytes_per_token = 0, state_bytes = 0;
  std::int32_t tail_blocks = 0;  // 0: all
};

// KV that one decode rank needs of one prefill rank.
struct KvShare {
  std::int32_t from_rank = 0, to_rank = 0;
  std::vector<KvPart> parts;
};

// What a worker's host takes to post reads of KV to the network, before it launches a step: for
// each rank that it reads from, and for each block of a layer, or its state.
struct ReadPosting {
  Ps rank = 0, block = 0;
};

// What goes from one layout to another. Where layers keep a state instead of tokens
// (`prefill_all_but_last_token`), the prefill group computes all but the last token of a prompt,
// since the decode group computes that one on the state before it (vLLM 0.24's NIXL connector).
struct KvTable {
  std::vector<KvShare> shares;
  std::int32_t block_size = 1;
  bool prefill_all_but_last_token = false;
  ReadPosting posting{};  // of the decode group's workers

  // Tokens [from, to) of a prompt of which `needed` tokens move, the first of them `first`.
  struct Piece {
    std::int32_t first, from, to, needed;
  };
  // What all layers of a share move of it.
  std::int64_t bytes_of(const KvShare& share, const Piece& piece) const;
  // The same where windows move with the prompt's end, as states do.
  std::int64_t bytes_of_chunk(const KvShare& share, const Piece& piece) const;
  // How long the slowest worker posts the reads of the tokens [from, needed).
  Ps posts(std::int32_t from, std::int32_t needed) const;
};

// What of the tokens [from, to) of a prompt the layers of `part` move, of which `needed` tokens
// move in all.
std::int64_t moved_bytes(const KvTable& table, const KvPart& part, std::int32_t needed,
                         std::int32_t from, std::int32_t to);

}  // namespace llmsim
