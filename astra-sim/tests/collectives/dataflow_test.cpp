// Collectives as data: messages carry what their sender has, in any order that their waits allow,
// and at the end every rank has what the collective promises; nothing is reduced twice.
#include "tests/collectives/dataflow.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "engine/isolated/isolated.h"
#include "model/base/errors.h"
#include "model/collective/schedule.h"
#include "model/topology/topology.h"
#include "tests/check.h"

using namespace astra_sim;
using model::Algorithm;
using model::CollectiveKind;
using model::Message;
using model::Schedule;

namespace {

struct Case {
  model::CollectivePlan plan;
  std::vector<model::DeviceId> group;
  std::shared_ptr<const model::Topology> topology;
  std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(group.size()); }
  std::vector<std::uint32_t> dims() const {
    return plan.shape.dims.empty() ? std::vector<std::uint32_t>{num_ranks()} : plan.shape.dims;
  }
};

using Mask = std::uint64_t;  // ranks whose contribution is in
constexpr std::uint32_t kAnyone = model::kNone;

// Where rank r's part of the vector lies, in units of a piece: of a reduce-scatter and an
// all-gather dimension 0 parts the vector first, of a gather and a scatter parts are in rank order.
std::int64_t part_of(const Case& c, std::uint32_t rank, std::int64_t piece_units) {
  const bool by_rank =
      c.plan.kind == CollectiveKind::kGather || c.plan.kind == CollectiveKind::kScatter;
  if (by_rank) return rank * (piece_units / c.num_ranks());
  std::int64_t first = 0;
  for (const std::uint32_t size : c.dims()) {
    piece_units /= size;
    first += rank % size * piece_units;
    rank /= size;
  }
  return first;
}

// Everything but all-to-all: per endpoint and unit the contributions that it holds.
void check_vectors(const Case& c, const Schedule& schedule, test::Random& random) {
  using enum CollectiveKind;
  const std::uint32_t n = c.num_ranks();
  const std::int64_t piece = 2 * n;
  const auto pieces = static_cast<std::int64_t>(c.plan.shape.pieces);
  const auto units = static_cast<std::size_t>(piece * pieces);
  const Mask everyone = ~Mask{0} >> (64 - n);
  const std::uint32_t root = c.plan.shape.root;
  const CollectiveKind kind = c.plan.kind;
  std::uint32_t endpoints = n;
  for (const Message& m : schedule.messages())
    endpoints = std::max({endpoints, m.from + 1, m.to + 1});
  std::vector<std::vector<Mask>> held(endpoints, std::vector<Mask>(units, 0));
  // own(r, u): u is in rank r's part.
  const auto own = [&](std::uint32_t rank, std::int64_t unit) {
    const std::int64_t inside = unit % piece - part_of(c, rank, piece);
    return inside >= 0 && inside < piece / n;
  };
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    for (std::size_t u = 0; u < units; ++u) {
      const bool reduces =
          kind == kAllReduce || kind == kReduceScatter || kind == kReduce || kind == kBarrier;
      const bool parts = kind == kAllGather || kind == kGather;
      const auto unit = static_cast<std::int64_t>(u);
      if (reduces || (parts && own(rank, unit)) || (!reduces && !parts && rank == root)) {
        held[rank][u] = Mask{1} << rank;
      }
    }
  }
  std::vector<std::vector<Mask>> cargo(schedule.num_messages());
  const auto unit_of = [](const Message& m, std::int64_t i) {
    const std::int64_t begin = m.first / m.lap * m.lap;
    return static_cast<std::size_t>(begin + (m.first - begin + i) % m.lap);
  };
  std::vector<std::uint32_t> piece_of;
  for (const Message& m : schedule.messages())
    piece_of.push_back(static_cast<std::uint32_t>(m.first / piece));
  test::Inbox inbox(schedule, piece_of);
  const auto merge = [&](std::uint32_t id) {
    const Message m = schedule.message(id);
    for (std::int64_t i = 0; i < m.units; ++i) {
      Mask& here = held[m.to][unit_of(m, i)];
      const Mask comes = cargo[id][static_cast<std::size_t>(i)];
      const bool adds = (here & comes) == 0;
      const bool replaces = (here & ~comes) == 0;
      CHECK(adds || replaces || kind == kBarrier);  // else something counts twice
      here |= comes;
    }
  };
  const bool done = test::Play(schedule, random)
                        .run(
                            [&](std::uint32_t id) {
                              const Message m = schedule.message(id);
                              for (std::int64_t i = 0; i < m.units; ++i) {
                                cargo[id].push_back(held[m.from][unit_of(m, i)]);
                                CHECK(cargo[id].back() != 0);  // nobody sends what he has not got
                              }
                            },
                            [&](std::uint32_t id) { inbox.take(id, merge); });
  CHECK(done);
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    for (std::size_t u = 0; u < units; ++u) {
      const auto unit = static_cast<std::int64_t>(u);
      const Mask has = held[rank][u];
      if (kind == kAllReduce || kind == kBarrier) CHECK_EQUAL(has, everyone);
      if (kind == kReduce && rank == root) CHECK_EQUAL(has, everyone);
      if (kind == kReduceScatter && own(rank, unit)) CHECK_EQUAL(has, everyone);
      if (kind == kBroadcast || (kind == kScatter && own(rank, unit)))
        CHECK_EQUAL(has, Mask{1} << root);
      if (kind == kAllGather || (kind == kGather && rank == root)) {
        for (std::uint32_t other = 0; other < n; ++other) {
          if (own(other, unit)) CHECK_EQUAL(has, Mask{1} << other);
        }
      }
    }
  }
}

// All-to-all: blocks (source, destination) move dimension by dimension. A direct message carries
// the blocks of its sender whose destination has the receiver's coordinate; on a ring the k-th
// message of a rank relays, in round d, the block of the rank d before it that has the longest way
// left.
void check_blocks(const Case& c, const Schedule& schedule, test::Random& random) {
  const std::uint32_t n = c.num_ranks();
  const std::vector<std::uint32_t> dims = c.dims();
  std::vector<std::uint32_t> stride{1};
  for (const std::uint32_t size : dims) stride.push_back(stride.back() * size);
  const auto coordinate = [&](std::uint32_t rank, std::uint32_t dim) {
    return rank / stride[dim] % dims[dim];
  };
  const std::uint32_t pieces = c.plan.shape.pieces;
  using Block =
      std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // piece, source, destination
  std::vector<std::set<Block>> held(n);
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    for (std::uint32_t to = 0; to < n; ++to) {
      for (std::uint32_t p = 0; p < pieces; ++p) held[rank].insert({p, rank, to});
    }
  }
  std::vector<std::set<Block>> cargo(schedule.num_messages());
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t>
      count;  // by phase (pieces apart) and sender
  std::vector<std::uint32_t> number(cargo.size());
  std::vector<std::uint32_t> piece_of(cargo.size());
  for (std::uint32_t id = 0; id < cargo.size(); ++id) {
    const Message m = schedule.message(id);
    const std::uint32_t size = dims[m.phase];
    const Algorithm algorithm =
        c.plan.shape.algorithms.empty() ? c.plan.algorithm : c.plan.shape.algorithms[m.phase];
    const std::uint32_t per_piece =
        algorithm == Algorithm::kRing ? size * (size - 1) / 2 : size - 1;
    const std::uint32_t k = count[{m.phase, m.from}]++;
    piece_of[id] = k / per_piece;
    number[id] = k % per_piece;
  }
  const auto depart = [&](std::uint32_t id) {
    const Message m = schedule.message(id);
    const std::uint32_t dim = m.phase;
    const std::uint32_t size = dims[dim];
    const Algorithm algorithm =
        c.plan.shape.algorithms.empty() ? c.plan.algorithm : c.plan.shape.algorithms[dim];
    std::uint32_t source = kAnyone;
    std::uint32_t destination = coordinate(m.to, dim);
    if (algorithm == Algorithm::kRing) {
      std::uint32_t round = 0;
      std::uint32_t k = number[id];
      for (; k >= size - 1 - round; ++round) k -= size - 1 - round;
      source = (coordinate(m.from, dim) + size - round) % size;
      destination = (source + size - 1 - k) % size;
    }
    for (auto block = held[m.from].begin(); block != held[m.from].end();) {
      const auto& [piece, from, to] = *block;
      const bool goes =
          piece == piece_of[id] && coordinate(to, dim) == destination &&
          to % stride[dim] == m.from % stride[dim] &&  // done with the dimensions below
          (source == kAnyone || coordinate(from, dim) == source);
      if (goes) cargo[id].insert(*block);
      block = goes ? held[m.from].erase(block) : std::next(block);
    }
    CHECK_EQUAL(static_cast<std::int64_t>(cargo[id].size()) * 2, m.units);  // a block is two units
  };
  test::Inbox inbox(schedule, piece_of);
  const auto arrive = [&](std::uint32_t id) {
    inbox.take(id, [&](std::uint32_t m) {
      held[schedule.message(m).to].insert(cargo[m].begin(), cargo[m].end());
    });
  };
  CHECK(test::Play(schedule, random).run(depart, arrive));
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    CHECK_EQUAL(held[rank].size(), std::size_t{n} * pieces);
    for (const auto& [piece, from, to] : held[rank]) CHECK_EQUAL(to, rank);
  }
}

// All that lay messages.
std::vector<Algorithm> algorithms() {
  std::vector<Algorithm> all;
  for (const model::AlgorithmEntry& entry : model::kAlgorithms)
    if (entry.lay != nullptr) all.push_back(entry.algorithm);
  return all;
}

bool check_case(const Case& c, test::Random& random) {
  std::shared_ptr<const Schedule> schedule;
  try {
    schedule = Schedule::make(c.plan, c.group);
  } catch (const model::InvalidTopology&) {
    return false;
  }
  const int before = test::failures;
  if (c.plan.kind == CollectiveKind::kAllToAll) {
    check_blocks(c, *schedule, random);
  } else {
    check_vectors(c, *schedule, random);
  }
  if (test::failures != before) {
    std::fprintf(stderr, "  in a %s of %u ranks, root %u, %u pieces:", model::name_of(c.plan.kind),
                 c.num_ranks(), c.plan.shape.root, c.plan.shape.pieces);
    for (std::size_t d = 0; d < c.dims().size(); ++d) {
      const auto& algorithms = c.plan.shape.algorithms;
      std::fprintf(stderr, " %s(%u)",
                   model::name_of(algorithms.empty() ? c.plan.algorithm : algorithms[d]),
                   c.dims()[d]);
    }
    std::fprintf(stderr, "\n");
  }
  return true;
}

Case flat(CollectiveKind kind, Algorithm algorithm, std::uint32_t n) {
  Case c{{kind, algorithm, 0, nullptr, {}, nullptr}, std::vector<model::DeviceId>(n), nullptr};
  std::iota(c.group.begin(), c.group.end(), 0U);
  c.topology = model::Topology::single(model::TopologyKind::kSwitched, n, 1'000'000'000, 0);
  c.plan.shape.topology = c.topology;
  return c;
}

// Every kind and algorithm with every number of ranks from 1 to 17.
void every_size() {
  test::Random random(51);
  int possible = 0;
  for (std::uint32_t n = 1; n <= 17; ++n) {
    for (int kind = 0; kind <= 8; ++kind) {
      for (const Algorithm algorithm : algorithms()) {
        Case c = flat(static_cast<CollectiveKind>(kind), algorithm, n);
        c.plan.shape.root = static_cast<std::uint32_t>(random.between(0, n - 1));
        if (random.between(0, 1) == 0)
          c.plan.shape.pieces = static_cast<std::uint32_t>(random.between(1, 4));
        if (algorithm == Algorithm::kDirect) {
          c.plan.shape.windows = {static_cast<std::uint32_t>(random.between(0, n))};
        }
        possible += check_case(c, random) ? 1 : 0;
      }
    }
  }
  // Halving-doubling has no all-to-all; two trees no gathers, scatters or exchanges; a switch no
  // exchange, gather or scatter; Bruck only what gathers or reduces everywhere, and barriers.
  CHECK_EQUAL(possible, 17 * (9 + 9 + 8 + 4 + 6 + 4));
}

// Plans of two and three dimensions, with an algorithm each.
void many_dimensions(int cases) {
  const std::vector<Algorithm> all_algorithms = algorithms();
  const auto last = static_cast<std::int64_t>(all_algorithms.size()) - 1;
  test::Random random(52);
  int possible = 0;
  for (int i = 0; i < cases; ++i) {
    Case c = flat(static_cast<CollectiveKind>(random.between(0, 8)), Algorithm::kRing, 1);
    std::uint32_t n = 1;
    for (std::int64_t d = random.between(2, 3); d > 0; --d) {
      c.plan.shape.dims.push_back(static_cast<std::uint32_t>(random.between(1, 4)));
      c.plan.shape.algorithms.push_back(all_algorithms[random.between(0, last)]);
      const bool direct = c.plan.shape.algorithms.back() == Algorithm::kDirect;
      c.plan.shape.windows.push_back(direct ? static_cast<std::uint32_t>(random.between(0, 3)) : 0);
      n *= c.plan.shape.dims.back();
    }
    const Case all = flat(c.plan.kind, Algorithm::kRing, n);
    c.group = all.group;
    c.topology = all.topology;
    c.plan.shape.topology = all.topology;
    c.plan.shape.root = static_cast<std::uint32_t>(random.between(0, n - 1));
    c.plan.shape.pieces = static_cast<std::uint32_t>(random.between(1, 3));
    possible += check_case(c, random) ? 1 : 0;
  }
  CHECK(possible > cases / 3);
}

}  // namespace

int main() {
  every_size();
  many_dimensions(1500);
  return test::finish("dataflow_test");
}
