// FlowBundles against FairShare with a flow for each of theirs: the same ends, bit for bit.
#include "engine/network/flow_bundles.h"

#include <algorithm>

#include "engine/network/flow_lanes.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::Bytes;
using model::BytesPerSecond;
using model::LinkId;
using model::Ps;

namespace {

struct Case {
  std::vector<BytesPerSecond> capacities;
  std::vector<Bundle> bundles;
};

// Rings whose hops take some of a few links; some links are alike, so that lanes have many flows.
Case random_case(test::Random& random) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random.next() % n); };
  Case made;
  const std::uint32_t links = 2 + below(8);
  for (std::uint32_t i = 0; i < links; ++i)
    made.capacities.push_back(1'000'000'000LL * (1 + below(3)) + below(2) * 7);
  made.bundles.resize(1 + below(4));
  for (Bundle& bundle : made.bundles) {
    bundle.resize(1 + below(5));
    for (BundledFlow& flow : bundle) {
      for (LinkId link = 0; link < links; ++link)
        if (below(3) == 0) flow.route.push_back(link);
      if (flow.route.empty()) flow.route.push_back(below(links));
      flow.latency = below(4) * 250;
    }
  }
  return made;
}

// A flow for each of a bundle's, on FairShare.
struct Reference {
  struct Open {
    BundleId bundle;
    Ps latency;
  };
  FairShare share;
  std::vector<Open> open;
  std::vector<std::size_t> left;
  std::vector<Ps> lands;

  explicit Reference(const Case& made)
      : share(made.capacities), left(made.bundles.size()), lands(made.bundles.size()) {}
  void start(Ps now, const Case& made, BundleId bundle, Bytes bytes) {
    left[bundle] = made.bundles[bundle].size();
    lands[bundle] = now;
    for (const BundledFlow& flow : made.bundles[bundle]) {
      const FlowId id = share.start(now, flow.route, bytes);
      if (id >= open.size()) open.resize(id + 1);
      open[id] = {bundle, flow.latency};
    }
  }
  std::vector<std::pair<BundleId, Ps>> end_due(Ps now) {
    std::vector<FlowId> ended;
    share.end_due(now, ended);
    std::vector<std::pair<BundleId, Ps>> landed;
    for (const FlowId flow : ended) {
      const BundleId bundle = open[flow].bundle;
      lands[bundle] = std::max(lands[bundle], now + open[flow].latency);
      if (--left[bundle] == 0) landed.emplace_back(bundle, lands[bundle]);
    }
    return landed;
  }
};

void compare_links(const Case& made, const FlowBundles& bundles, const FairShare& share, Ps now) {
  for (LinkId link = 0; link < made.capacities.size(); ++link) {
    CHECK_EQUAL(bundles.bytes_left_on(link, now), share.bytes_left_on(link, now));
    CHECK_EQUAL(bundles.busy_ps(link, now), share.busy_ps(link, now));
  }
}

// Bundles start at random times, come again and again, and end when FairShare says.
void run_case(std::uint64_t seed) {
  test::Random random(seed);
  const Case made = random_case(random);
  FlowBundles bundles(made.capacities, made.bundles);
  Reference reference(made);
  std::vector<bool> moving(made.bundles.size(), false);
  Ps now = 0;
  for (int change = 0; change < 120; ++change) {
    const bool starts = random.next() % 2 == 0;
    const Ps next = reference.share.next_end();
    const Ps pause = static_cast<Ps>(random.next() % 3'000'000);
    if (starts) now = std::min(next, now + pause);
    if (!starts && next != FairShare::kNever) now = next;
    compare_links(made, bundles, reference.share, now);
    auto expected = reference.end_due(now);
    std::vector<FlowBundles::Landing> found;
    bundles.end_due(now, found);
    std::vector<std::pair<BundleId, Ps>> landed;
    for (const auto& landing : found) landed.emplace_back(landing.bundle, landing.at);
    std::ranges::sort(expected);
    std::ranges::sort(landed);
    CHECK(expected == landed);
    for (const auto& [bundle, at] : landed) moving[bundle] = false;
    const auto bundle = static_cast<BundleId>(random.next() % made.bundles.size());
    if (starts && !moving[bundle]) {
      const Bytes bytes = 1 + static_cast<Bytes>(random.next() % 5000);
      moving[bundle] = true;
      bundles.start(now, bundle, bytes);
      reference.start(now, made, bundle, bytes);
    }
    bundles.solve(now);
    reference.share.solve(now);
  }
}

// A ring of two flows over one link, and one flow that comes meanwhile, again and again.
void sets_that_come_again_are_solved_once() {
  const std::vector<BytesPerSecond> capacities{1'000'000'000};
  FlowBundles rings(capacities, {{{{0}, 5}, {{0}, 0}}, {{{0}, 0}}});
  Ps now = 0;
  std::vector<FlowBundles::Landing> landed;
  for (int turn = 0; turn < 100; ++turn) {
    rings.start(now, 0, 3000);
    rings.solve(now);
    now += 1'000'000;
    rings.start(now, 1, 1000 + turn);
    for (rings.solve(now); rings.next_end() != FairShare::kNever; rings.solve(now)) {
      now = rings.next_end();
      rings.end_due(now, landed);
    }
  }
  CHECK_EQUAL(landed.size(), 200U);
  CHECK_EQUAL(rings.num_solved_sets(), 2U);
  // A third of the link for 1000 bytes: 3 us, and what rounding the third has left over.
  CHECK_EQUAL(landed[0].bundle, 1U);
  CHECK_EQUAL(landed[0].at, 4'000'001);
  CHECK(rings.repeats());
}

// What is left of flows goes on as flows of FairShare, and ends when it would have.
void run_on_elsewhere(std::uint64_t seed) {
  test::Random random(seed);
  const Case made = random_case(random);
  FlowBundles bundles(made.capacities, made.bundles);
  Reference reference(made);
  for (BundleId bundle = 0; bundle < made.bundles.size(); ++bundle) {
    const Bytes bytes = 1 + static_cast<Bytes>(random.next() % 5000);
    bundles.start(0, bundle, bytes);
    reference.start(0, made, bundle, bytes);
  }
  bundles.solve(0);
  reference.share.solve(0);
  const Ps now = bundles.next_end();
  CHECK_EQUAL(now, reference.share.next_end());
  std::vector<FlowBundles::Landing> landed;
  bundles.end_due(now, landed);
  reference.end_due(now);
  bundles.solve(now);
  reference.share.solve(now);
  const Ps later = now + static_cast<Ps>(random.next() % 1000);
  FairShare rest(made.capacities);
  for (const auto& stopped : bundles.stop(later))
    for (const auto& [flow, volume] : stopped.flows)
      rest.go_on(later, made.bundles[stopped.bundle][flow].route, volume);
  CHECK_EQUAL(bundles.next_end(), FairShare::kNever);
  rest.solve(later);
  while (reference.share.num_flows() > 0) {
    const Ps next = std::max(later, reference.share.next_end());
    CHECK_EQUAL(rest.next_end(), next);
    std::vector<FlowId> ended;
    rest.end_due(next, ended);
    reference.end_due(next);
    rest.solve(next);
    reference.share.solve(next);
    CHECK_EQUAL(rest.num_flows(), reference.share.num_flows());
  }
}

void lanes_of_a_ring_on_alike_links() {
  const std::vector<BytesPerSecond> capacities{10, 10, 10, 10, 5};
  const std::vector<std::vector<LinkId>> routes{{0, 4}, {1, 4}, {2}, {3}};
  std::vector<ColouredFlow> flows;
  for (const auto& route : routes) flows.push_back({0, route});
  CHECK(lanes_of(capacities, flows) == (std::vector<std::uint32_t>{0, 0, 1, 1}));
  flows[1].bundle = 1;  // another bundle, whose company differs
  CHECK(lanes_of(capacities, flows) == (std::vector<std::uint32_t>{0, 1, 2, 2}));
}

void sets_that_never_come_again_are_noticed() {
  std::vector<Bundle> bundles;
  for (int i = 0; i < 16; ++i) bundles.push_back({{{0}, 0}});
  const std::vector<BytesPerSecond> capacities{1'000'000'000};
  FlowBundles crowd(capacities, bundles);
  CHECK(crowd.repeats());
  test::Random random(7);
  std::vector<bool> moving(bundles.size(), false);
  std::vector<FlowBundles::Landing> landed;
  Ps now = 0;
  for (int change = 0; change < 20'000 && crowd.repeats(); ++change) {
    const auto bundle = static_cast<BundleId>(random.next() % bundles.size());
    if (!moving[bundle]) crowd.start(now, bundle, 1 + static_cast<Bytes>(random.next() % 9000));
    moving[bundle] = true;
    crowd.solve(now);
    now = std::min(crowd.next_end(), now + static_cast<Ps>(random.next() % 2'000'000));
    landed.clear();
    crowd.end_due(now, landed);
    for (const auto& landing : landed) moving[landing.bundle] = false;
    crowd.solve(now);
  }
  CHECK(!crowd.repeats());
}

}  // namespace

int main() {
  lanes_of_a_ring_on_alike_links();
  for (std::uint64_t seed = 0; seed < 300; ++seed) run_case(seed);
  for (std::uint64_t seed = 0; seed < 300; ++seed) run_on_elsewhere(seed);
  sets_that_come_again_are_solved_once();
  sets_that_never_come_again_are_noticed();
  return test::finish("flow_bundles_test");
}
