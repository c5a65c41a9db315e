// Folded and expanded evaluation of a tensor-parallel iteration: a chain of compute and collectives
// on one group.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/isolated/collective_map.h"
#include "engine/isolated/isolated.h"
#include "model/graph/graph.h"

namespace astra_sim::engine {

// One link of a chain: compute (one duration for all ranks, or one per rank) or a collective of the
// chain's `sites`.
struct ChainItem {
  std::vector<Ps> compute_ps;  // empty: a collective
  std::uint32_t site = 0;
  Bytes bytes = 0;
};

struct ChainBlock {
  std::vector<ChainItem> items;
  std::int64_t repeat = 1;  // identical layers
};

// All sites have the same topology, group and options; they differ in kind, algorithm and table.
struct Chain {
  std::vector<CollectiveSite> sites;
  std::vector<ChainBlock> blocks;
};

// A chain compiled once: its collectives as maps. Evaluation allocates nothing after the first
// call; one thread at a time. Exact, to the picosecond, against `expand` given to an engine that
// does nothing else.
class FoldedChain {
 public:
  // Throws InvalidGraph when the chain has no site, sites differ where they may not, or an item
  // does not fit.
  explicit FoldedChain(const Chain& chain);

  std::size_t num_ranks() const { return num_ranks_; }
  // True: exact for any start times. False: only while all ranks move together.
  bool linear() const { return linear_; }
  // End of all ranks from one common start; throws NotFoldable when they drift apart in a chain
  // that is not linear.
  Ps end(Ps start_ps);
  // One entry per rank; the spans may be the same. Throws NotFoldable as above, OutOfRange beyond
  // the horizon.
  void end(std::span<const Ps> starts_ps, std::span<Ps> ends_ps);

 private:
  struct Item {
    std::vector<Ps> compute_ps;
    std::int32_t map = -1;
  };
  struct Block {
    std::vector<Item> items;
    std::int64_t repeat;
  };
  void pass_compute(const Item& item);
  void pass_collective(const Item& item);
  bool leap(std::int64_t remaining);

  std::size_t num_ranks_;
  bool linear_;
  bool in_step_ = true;  // ranks that end at one time do so in one batch of the engine's events
  std::vector<CollectiveMap> maps_;
  std::vector<bool> keeps_step_;  // by map
  std::vector<Block> blocks_;
  std::vector<Ps> at_;    // where each rank is
  std::vector<Ps> next_;  // scratch
  std::vector<Ps> layer_start_;
};

// The same chain with every rank its own nodes: node (position * n + rank), where position 0 holds
// the rank back by its start offset (amount: ps) and each item of each repetition follows. Submit
// it with other amounts to reuse it.
std::shared_ptr<const ExecutionGraph> expand(const Chain& chain,
                                             std::span<const Ps> start_offsets_ps);

// Ends of all ranks when the expanded chain runs alone from start offsets >= 0 on a new engine.
void expanded_ends(const Chain& chain, std::span<const Ps> starts_ps, std::span<Ps> ends_ps);

}  // namespace astra_sim::engine
