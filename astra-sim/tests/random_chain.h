// Random collective sites and chains for the property tests.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/folded/folded.h"
#include "tests/check.h"

namespace astra_sim::test {

using engine::Chain;
using engine::CollectiveSite;
using model::Ps;

inline std::vector<model::DeviceId> random_group(Random& random, std::uint32_t num_devices,
                                                 std::size_t size) {
  std::vector<model::DeviceId> devices(num_devices);
  for (model::DeviceId i = 0; i < num_devices; ++i) devices[i] = i;
  if (random.between(0, 2) == 0) {  // any subset in any order, else an aligned run
    for (std::size_t i = num_devices - 1; i > 0; --i) {
      std::swap(devices[i],
                devices[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i)))]);
    }
  }
  devices.resize(size);
  return devices;
}

inline CollectiveSite random_site(Random& random, std::uint32_t max_ranks) {
  const auto ranks = static_cast<std::size_t>(random.between(1, max_ranks));
  const auto devices =
      static_cast<std::uint32_t>(ranks + (random.between(0, 1) != 0 ? random.between(0, 4) : 0));
  const auto kind = static_cast<model::TopologyKind>(random.between(0, 2));
  const std::int64_t bandwidths[] = {999'983,        7'000'001,       1'000'000'000,
                                     25'000'000'000, 450'000'000'000, 1'234'567'891};
  const Ps latencies[] = {0, 1, 500'000, 936'250, 1'000'003};
  CollectiveSite site;
  site.topology = model::Topology::single(kind, devices, bandwidths[random.between(0, 5)],
                                          latencies[random.between(0, 4)]);
  site.group = random_group(random, devices, ranks);
  site.kind = static_cast<model::CollectiveKind>(random.between(0, 3));
  site.algorithm = static_cast<model::Algorithm>(random.between(0, 1));
  site.options.network = static_cast<engine::NetworkKind>(random.between(0, 1));
  site.options.endpoint_delay_ps = random.between(0, 2) == 0 ? random.between(0, 20'000) : 0;
  return site;
}

inline model::Bytes random_bytes(Random& random) {
  const std::int64_t top[] = {0, 3, 1'000, 1'048'579, 300'000'000};
  return random.between(0, top[random.between(0, 4)]);
}

inline void make_measured(CollectiveSite& site) {
  site.algorithm = model::Algorithm::kMeasured;
  site.table =
      std::make_shared<model::MeasuredTable>(std::vector<model::Bytes>{0, 1000, 1'000'000},
                                             std::vector<Ps>{5'000'000, 6'000'001, 40'000'000});
}

inline Chain random_chain(Random& random, std::uint32_t max_ranks) {
  Chain chain;
  chain.sites.push_back(random_site(random, max_ranks));
  for (int more = 0; more < 2; ++more) {
    CollectiveSite site = chain.sites[0];
    site.kind = static_cast<model::CollectiveKind>(random.between(0, 3));
    site.algorithm = static_cast<model::Algorithm>(random.between(0, 1));
    if (random.between(0, 3) == 0) make_measured(site);
    chain.sites.push_back(site);
  }
  const std::int64_t blocks = random.between(0, 3);
  for (std::int64_t b = 0; b < blocks; ++b) {
    engine::ChainBlock block;
    block.repeat = random.between(0, 4);
    const std::int64_t items = random.between(1, 4);
    for (std::int64_t i = 0; i < items; ++i) {
      if (random.between(0, 1) == 0) {
        block.items.push_back({{random.between(0, 3'000'000)}, 0, 0});
      } else {
        block.items.push_back(
            {{}, static_cast<std::uint32_t>(random.between(0, 2)), random_bytes(random)});
      }
    }
    chain.blocks.push_back(std::move(block));
  }
  return chain;
}

// Gives every compute item a duration per rank.
inline void skew_compute(Random& random, Chain& chain) {
  for (auto& block : chain.blocks) {
    for (auto& item : block.items) {
      if (item.compute_ps.empty()) continue;
      item.compute_ps.clear();
      for (std::size_t r = 0; r < chain.sites[0].group.size(); ++r) {
        item.compute_ps.push_back(random.between(0, 3'000'000));
      }
    }
  }
}

}  // namespace astra_sim::test
