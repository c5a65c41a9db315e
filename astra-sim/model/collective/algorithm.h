// The algorithms of collectives: one enumerator and one row each. Whoever asks what an algorithm
// can do (schedules, system files, strict rules, bindings, serving runs) asks its row.
//
// A new algorithm is an enumerator and a row here, and a file of its message pattern in impl/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace astra_sim::model {

// `bytes` of a collective is the whole vector S of one rank: all-reduce: the vector;
// reduce-scatter: the input; all-gather: the output; all-to-all: everything a rank sends, its own
// part included. A message carries S / n. Broadcast, reduce, gather, scatter: the root's vector,
// before or after. Barrier: the size of each of its messages.
enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier
};

const char* name_of(CollectiveKind kind);

enum class Algorithm : std::uint8_t {
  // Messages to the next rank of the group's list, each after the previous one was received.
  // Rooted kinds pass along a chain.
  kRing,
  // A message to every other rank at once, rank + 1 first; all-reduce in two such phases.
  kDirect,
  // No messages: starts when all ranks have arrived, ends for all together after a measured
  // duration.
  kMeasured,
  // Recursive halving and doubling; what exceeds a power of two hands its vector to a neighbour
  // first. Rooted kinds: a binomial tree.
  kHalvingDoubling,
  // Each half of the vector goes up and down a binary tree of its own.
  kDoubleBinaryTree,
  // The switch that all ranks hang on reduces and multicasts.
  kInSwitch,
  // The messages of a schedule that the plan brings along (Schedule::custom).
  kCustom,
  // An all-gather in ceil(log2 n) rounds for any number of ranks; a reduce-scatter the other way.
  kBruck
};

// A set of kinds of collectives, a bit each.
using Kinds = std::uint16_t;

template <class... Some>
constexpr Kinds kinds(Some... some) {
  return static_cast<Kinds>((0U | ... | (1U << static_cast<unsigned>(some))));
}

class ScheduleBuilder;
struct Line;

// Message patterns on the ranks of one line, a file each in impl/.
namespace patterns {
using Pattern = void(ScheduleBuilder& out, const Line& line, CollectiveKind kind);
Pattern ring, direct, halving_doubling, double_binary_tree, in_switch, bruck;
// A barrier: in round k, a message to the rank 2^k further.
Pattern dissemination;
}  // namespace patterns

// What is known of one algorithm.
struct AlgorithmEntry {
  Algorithm algorithm;
  const char* name;  // in sentences
  const char* word;  // in ASTRA-sim's system files, in cluster files and on command lines
  Kinds kinds = 0;   // of the collectives that it has messages for
  patterns::Pattern* lay = nullptr;  // null: files cannot ask for it
  bool upstream = false;             // ASTRA-sim has it: strict rules run it
  bool flat = false;                 // system files may put "one" in front: over all NPUs at once
  bool windows = false;     // system files may put behind it how many messages are in flight
  bool reacts = false;      // the engine runs its first four kinds on one line without a schedule
  bool two_phases = false;  // its all-reduce is a reduce-scatter, then an all-gather
  bool in_step = false;     // on equal links of their own, ranks that start together end together
  bool on_switch = false;   // needs a switch that all ranks hang on; lays its own barriers
};

inline constexpr Kinds kEveryKind = 0x1ff;

inline constexpr AlgorithmEntry kAlgorithms[] = {
    {.algorithm = Algorithm::kRing,
     .name = "ring",
     .word = "ring",
     .kinds = kEveryKind,
     .lay = &patterns::ring,
     .upstream = true,
     .flat = true,
     .reacts = true,
     .two_phases = true,
     .in_step = true},
    {.algorithm = Algorithm::kDirect,
     .name = "direct",
     .word = "direct",
     .kinds = kEveryKind,
     .lay = &patterns::direct,
     .upstream = true,
     .flat = true,
     .windows = true,
     .reacts = true,
     .two_phases = true,
     .in_step = true},
    {.algorithm = Algorithm::kMeasured, .name = "measured", .word = "measured", .in_step = true},
    {.algorithm = Algorithm::kHalvingDoubling,
     .name = "halving-doubling",
     .word = "halvingDoubling",
     .kinds = kEveryKind & ~kinds(CollectiveKind::kAllToAll),
     .lay = &patterns::halving_doubling,
     .upstream = true,
     .flat = true},
    {.algorithm = Algorithm::kDoubleBinaryTree,
     .name = "double binary tree",
     .word = "doubleBinaryTree",
     .kinds = kinds(CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kReduce,
                    CollectiveKind::kBarrier),
     .lay = &patterns::double_binary_tree,
     .upstream = true},
    {.algorithm = Algorithm::kInSwitch,
     .name = "in-switch",
     .word = "inSwitch",
     .kinds = kEveryKind &
              ~kinds(CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kScatter),
     .lay = &patterns::in_switch,
     .on_switch = true},
    {.algorithm = Algorithm::kCustom, .name = "custom", .word = "custom"},
    {.algorithm = Algorithm::kBruck,
     .name = "Bruck",
     .word = "bruck",
     .kinds = kinds(CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                    CollectiveKind::kReduceScatter, CollectiveKind::kBarrier),
     .lay = &patterns::bruck,
     .two_phases = true},
};

constexpr bool rows_are_in_order() {
  std::size_t at = 0;
  for (const AlgorithmEntry& entry : kAlgorithms)
    if (static_cast<std::size_t>(entry.algorithm) != at++) return false;
  return true;
}
static_assert(rows_are_in_order());

constexpr const AlgorithmEntry& entry_of(Algorithm algorithm) {
  return kAlgorithms[static_cast<std::size_t>(algorithm)];
}
constexpr const char* name_of(Algorithm algorithm) { return entry_of(algorithm).name; }
constexpr bool can(Algorithm algorithm, CollectiveKind kind) {
  return (entry_of(algorithm).kinds & kinds(kind)) != 0;
}

}  // namespace astra_sim::model
