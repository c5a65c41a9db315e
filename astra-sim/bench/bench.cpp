// Measures the figures that the README quotes; prints one line each to stdout.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>

#include "engine/folded/folded.h"
#include "model/topology/topology.h"

using namespace astra_sim;
using namespace astra_sim::engine;

namespace {

// CPU seconds of this process: the machine may be shared.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// Best of `repeats`: noise only ever adds.
double best_seconds(int repeats, const std::function<void()>& action) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const double begin = cpu_seconds();
    action();
    best = std::min(best, cpu_seconds() - begin);
  }
  return best;
}

CollectiveSite site(model::TopologyKind kind, std::uint32_t devices, model::Algorithm algorithm,
                    NetworkKind network) {
  std::vector<DeviceId> group(devices);
  std::iota(group.begin(), group.end(), 0U);
  return {model::Topology::single(kind, devices, 450'000'000'000, 500'000),
          group,
          model::CollectiveKind::kAllReduce,
          algorithm,
          nullptr,
          {network, 0}};
}

Chain iteration(const CollectiveSite& where) {
  Chain chain{{where}, {}};
  chain.blocks.push_back(
      {{{{40'000'000}, 0, 0}, {{}, 0, 1'048'579}, {{80'000'000}, 0, 0}, {{}, 0, 1'048'579}}, 80});
  return chain;
}

void layers(const char* name, const CollectiveSite& where, bool skewed) {
  const Chain chain = iteration(where);
  std::vector<Ps> starts(where.group.size());
  for (std::size_t i = 0; skewed && i < starts.size(); ++i)
    starts[i] = static_cast<Ps>(i * 1'234'567);
  const auto graph = expand(chain, starts);
  std::vector<std::int64_t> amounts(graph->amount);
  Engine engine(where.topology, where.options);
  const auto once = [&] {
    const GraphId id = engine.submit(graph, engine.now(), amounts);
    engine.advance();
    engine.release(id);
  };
  once();
  const std::uint64_t before = engine.num_events();
  once();
  const auto events = static_cast<double>(engine.num_events() - before);
  const double seconds = best_seconds(100, once);
  std::printf("expanded TP8 x 80 layers, %s%s: %.3f ms, %.0f events, %.1f M events/s\n", name,
              skewed ? ", skewed" : "", seconds * 1e3, events, events / seconds / 1e6);
  if (skewed) return;
  FoldedChain folded(chain);
  std::vector<Ps> ends(starts.size());
  constexpr int kBatch = 1000;  // one evaluation is shorter than a look at the clock
  const double fold = best_seconds(20,
                                   [&] {
                                     for (int i = 0; i < kBatch; ++i) folded.end(starts, ends);
                                   }) /
                      kBatch;
  const double build = best_seconds(20, [&] { expand(chain, starts); });
  std::printf("  folded: %.3f us; building and checking the graph: %.3f ms\n", fold * 1e6,
              build * 1e3);
}

void large(NetworkKind network, const char* name, bool skewed) {
  const CollectiveSite where =
      site(model::TopologyKind::kRing, 1024, model::Algorithm::kRing, network);
  IsolatedSimulation simulation(where);
  std::vector<Ps> starts(1024, 0);
  std::vector<Ps> ends(1024);
  std::uint64_t state = 1;
  for (Ps& start : starts) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    start = skewed ? static_cast<Ps>(state >> 32) : 0;
  }
  const double seconds = best_seconds(3, [&] { simulation.run(100'000'000, starts, ends); });
  const double messages = 1024.0 * 2 * 1023;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "1,024-rank ring all-reduce, %s%s: %.3f s, %.1f M messages (one event each)/s, %.1f MB in "
      "all\n",
      name, skewed ? ", skewed" : "", seconds, messages / seconds / 1e6,
      static_cast<double>(usage.ru_maxrss) / 1e3);
}

void tables() {
  std::vector<Bytes> sizes(8192);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<Bytes>(i) * 16'384;
  std::vector<Ps> out(sizes.size());
  const auto time = [&](const char* name, const CollectiveSite& where) {
    const double seconds = best_seconds(3, [&] { isolated_durations(where, sizes, out); });
    std::printf("isolated durations of 8,192 sizes, %s: %.3f ms\n", name, seconds * 1e3);
  };
  using model::Algorithm;
  using model::TopologyKind;
  time("ring on ring (closed form)",
       site(TopologyKind::kRing, 8, Algorithm::kRing, NetworkKind::kCongestionAware));
  time("direct on switch (closed form)",
       site(TopologyKind::kSwitched, 8, Algorithm::kDirect, NetworkKind::kCongestionAware));
  time("direct on ring (simulated)",
       site(TopologyKind::kRing, 8, Algorithm::kDirect, NetworkKind::kCongestionAware));
}

}  // namespace

int main() {
  using model::Algorithm;
  using model::TopologyKind;
  layers("ring on ring, aware",
         site(TopologyKind::kRing, 8, Algorithm::kRing, NetworkKind::kCongestionAware), false);
  layers("ring on ring, aware",
         site(TopologyKind::kRing, 8, Algorithm::kRing, NetworkKind::kCongestionAware), true);
  layers("ring on ring, unaware",
         site(TopologyKind::kRing, 8, Algorithm::kRing, NetworkKind::kCongestionUnaware), false);
  layers("ring on switch, aware",
         site(TopologyKind::kSwitched, 8, Algorithm::kRing, NetworkKind::kCongestionAware), false);
  layers("direct on switch, aware",
         site(TopologyKind::kSwitched, 8, Algorithm::kDirect, NetworkKind::kCongestionAware),
         false);
  large(NetworkKind::kCongestionAware, "aware", false);
  large(NetworkKind::kCongestionAware, "aware", true);
  large(NetworkKind::kCongestionUnaware, "unaware", false);
  tables();
  return 0;
}
