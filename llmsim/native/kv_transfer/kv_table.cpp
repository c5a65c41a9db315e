#include "kv_transfer/kv_table.h"

#include <algorithm>
#include <map>

namespace llmsim {

namespace {

// Layers with a window keep its blocks and one more, as it need not begin with a block (vLLM:
// blocks_per_sw).
std::int32_t first_moved(const KvTable& table, const KvPart& part, std::int32_t needed,
                         std::int32_t from) {
  if (part.tail_blocks == 0) return from;
  const auto blocks = static_cast<std::int32_t>(ceil_div(needed, table.block_size));
  return std::max(from, (blocks - part.tail_blocks) * table.block_size);
}

// Blocks of one layer that the tokens [from, needed) are in; a state is one.
std::int64_t moved_blocks(const KvTable& table, const KvPart& part, std::int32_t needed,
                          std::int32_t from) {
  if (part.bytes_per_token == 0) return 1;
  const std::int32_t first = first_moved(table, part, needed, from) / table.block_size;
  return ceil_div(needed, table.block_size) - first;
}

}  // namespace

std::int64_t moved_bytes(const KvTable& table, const KvPart& part, std::int32_t needed,
                         std::int32_t from, std::int32_t to) {
  const std::int32_t first = first_moved(table, part, needed, from);
  const std::int64_t state = to == needed ? part.state_bytes : 0;
  return std::max(0, to - first) * part.bytes_per_token + state;
}

std::int64_t KvTable::bytes_of(const KvShare& share, const Piece& piece) const {
  std::int64_t bytes = 0;
  for (const KvPart& part : share.parts)
    bytes += moved_bytes(*this, part, piece.needed, piece.from, piece.to) *
             static_cast<std::int64_t>(part.layers.size());
  return bytes;
}

std::int64_t KvTable::bytes_of_chunk(const KvShare& share, const Piece& piece) const {
  std::int64_t bytes = 0;
  const bool ends = piece.to == piece.needed;
  for (const KvPart& part : share.parts) {
    const bool of_windows = part.tail_blocks > 0;
    if (of_windows && !ends) continue;
    const std::int32_t from = of_windows ? piece.first : piece.from;
    bytes += moved_bytes(*this, part, piece.needed, from, piece.to) *
             static_cast<std::int64_t>(part.layers.size());
  }
  return bytes;
}

Ps KvTable::posts(std::int32_t from, std::int32_t needed) const {
  if (posting.rank == 0 && posting.block == 0) return 0;
  std::map<std::int32_t, Ps> of_worker;
  for (const KvShare& share : shares) {
    std::int64_t blocks = 0;
    for (const KvPart& part : share.parts)
      blocks +=
          moved_blocks(*this, part, needed, from) * static_cast<std::int64_t>(part.layers.size());
    of_worker[share.to_rank] += posting.rank + blocks * posting.block;
  }
  Ps longest = 0;
  for (const auto& [worker, posts] : of_worker) longest = std::max(longest, posts);
  return longest;
}

}  // namespace llmsim
