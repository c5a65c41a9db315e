// Measures the fair-share network on fat trees: all-to-all of equal and of skewed sizes. One line
// per figure. fair_bench [NAME [ARITY [DEVICES]]]
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>

#include "engine/loop/engine.h"
#include "model/graph/graph_builder.h"
#include "model/topology/topology_builder.h"

using namespace astra_sim;
using namespace astra_sim::engine;

namespace {

// Three levels of switches with `arity` ports down and up each: arity^3 devices, non-blocking.
std::shared_ptr<const Topology> fat_tree(std::uint32_t arity, bool spread) {
  const std::uint32_t square = arity * arity;
  const std::uint32_t devices = square * arity;
  model::TopologyBuilder builder(devices);
  for (std::uint32_t level = 0; level < 3; ++level) {
    const std::uint32_t divisor = !spread ? 0 : level == 0 ? 1 : arity;
    for (std::uint32_t i = 0; i < square; ++i) builder.add_switch(0, divisor);
  }
  const auto vertex = [&](std::uint32_t level, std::uint32_t i) {
    return devices + level * square + i;
  };
  for (DeviceId device = 0; device < devices; ++device) {
    builder.add_link(device, vertex(0, device / arity), 50'000'000'000, 500'000);
  }
  for (std::uint32_t leaf = 0; leaf < square; ++leaf) {
    for (std::uint32_t j = 0; j < arity; ++j) {
      builder.add_link(vertex(0, leaf), vertex(1, leaf / arity * arity + j), 50'000'000'000,
                       500'000);
    }
  }
  for (std::uint32_t mid = 0; mid < square; ++mid) {
    for (std::uint32_t k = 0; k < arity; ++k) {
      builder.add_link(vertex(1, mid), vertex(2, mid % arity * arity + k), 50'000'000'000, 500'000);
    }
  }
  return builder.build();
}

// Of this process: the machine may be shared.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void report(const char* name, const Engine& engine, double seconds, Ps end) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const FairShareCounters count = engine.fair_share_counters();
  std::printf(
      "%s: %.1f CPU s, %.2f GB, ends at %.6f ms; %llu solves, %.1f flows each, %llu deferred\n",
      name, seconds, static_cast<double>(usage.ru_maxrss) / 1e6, static_cast<double>(end) / 1e9,
      static_cast<unsigned long long>(count.solves),
      static_cast<double>(count.visits) / static_cast<double>(count.solves),
      static_cast<unsigned long long>(count.deferred));
}

// One direct all-to-all of all devices.
void equal(std::uint32_t arity, bool spread) {
  double begin = cpu_seconds();
  const auto topology = fat_tree(arity, spread);
  const std::uint32_t n = topology->num_devices();
  std::printf("fat tree of %u devices: routes in %.1f s\n", n, cpu_seconds() - begin);
  begin = cpu_seconds();
  model::GraphBuilder builder(n);
  std::vector<DeviceId> group(n);
  std::iota(group.begin(), group.end(), 0U);
  builder.add_plan({model::CollectiveKind::kAllToAll, model::Algorithm::kDirect,
                    builder.add_group(group), nullptr});
  for (const DeviceId device : group) builder.collective(device, 0, 0, Bytes{n} * 65'536, {});
  Engine engine(topology, {NetworkKind::kFairShare, 0});
  engine.submit(builder.build(), 0);
  const Ps end = engine.run();
  report(spread ? "all-to-all, equal, routes spread" : "all-to-all, equal, routes hashed", engine,
         cpu_seconds() - begin, end);
}

// Transfers of random sizes between `n` devices that all start together, first to first neighbours.
void skewed(std::uint32_t arity, std::uint32_t n, RateQuantum quantum) {
  const auto topology = fat_tree(arity, false);
  const double begin = cpu_seconds();
  model::GraphBuilder builder(topology->num_devices());
  std::uint64_t state = 1;
  for (DeviceId from = 0; from < n; ++from) {
    for (DeviceId to = 0; to < n; ++to) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto bytes = static_cast<Bytes>(state >> 44) + 1;
      if (from != to) builder.transfer(from, to, bytes, {}, model::Stream::kNone);
    }
  }
  Engine engine(topology, {NetworkKind::kFairShare, 0, quantum});
  engine.submit(builder.build(), 0);
  const Ps end = engine.run();
  report(quantum.rate_ppm == 0 ? "all-to-all, skewed, exact" : "all-to-all, skewed, quantum",
         engine, cpu_seconds() - begin, end);
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "all";
  const auto arity = static_cast<std::uint32_t>(argc > 2 ? std::atoi(argv[2]) : 16);
  const auto wanted = [&](const char* name) {
    return std::strcmp(what, "all") == 0 || std::strcmp(what, name) == 0;
  };
  if (wanted("spread")) equal(arity, true);
  if (wanted("hashed")) equal(arity, false);
  const auto devices = [&](int standard) {  // of the 512 of an 8-ary tree, or 4,096 of a 16-ary one
    return static_cast<std::uint32_t>(argc > 3 ? std::atoi(argv[3]) : standard);
  };
  const auto tree = [&](std::uint32_t standard) { return argc > 2 ? arity : standard; };
  if (wanted("skewed")) skewed(tree(8), devices(256), {});
  if (wanted("quantum")) skewed(tree(8), devices(512), {10'000, 65'536});
  return 0;
}
