// A collective on links of its own: how long it takes, by closed form where that is exact, else by
// simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/loop/engine.h"
#include "model/collective/collective.h"
#include "model/topology/topology.h"

namespace astra_sim::engine {

// Where a collective runs and how; describes all sizes.
struct CollectiveSite {
  std::shared_ptr<const Topology> topology;
  std::vector<DeviceId> group;  // rank order
  model::CollectiveKind kind;
  model::Algorithm algorithm;
  std::shared_ptr<const model::MeasuredTable> table;  // for Algorithm::kMeasured
  EngineOptions options;
  model::CollectiveShape shape{};                     // its topology is this one, if any
  std::shared_ptr<const model::Schedule> schedule{};  // for Algorithm::kCustom

  model::CollectivePlan plan(model::GroupId id = 0) const {
    return {kind, algorithm, id, table, shape, schedule};
  }
  bool scheduled() const { return model::is_scheduled(kind, algorithm, shape); }
};

// An ordered pair of devices between which a collective sends messages.
using Flow = std::pair<DeviceId, DeviceId>;

// Throws InvalidTopology when the group is empty, repeats a device or leaves the topology, or a
// table is misplaced.
void check_site(const CollectiveSite& site);
// For a site without a schedule.
std::vector<Flow> flows_of(const CollectiveSite& site);
// A link that messages of one channel cross (a flow; with pieces: a flow in one phase).
struct Use {
  model::LinkId link;
  std::uint64_t flow;
  std::uint32_t phase;
};
std::vector<Use> uses_of(const CollectiveSite& site);
// True when no link is used by two channels, so that no order of service depends on start times.
bool uses_are_private(const Topology& topology, std::span<const Use> uses);
// True when no link is used by two flows (ordered pairs of ranks). Equal flows count once.
bool flows_are_private(const Topology& topology, std::span<const Flow> flows);
// Where links are private, and on the congestion-unaware network, ends are a max-plus linear
// function of starts.
bool is_linear(const CollectiveSite& site);

// A duration as a formula of the size; only where tests hold it equal to the simulation.
struct ClosedForm {
  // `repeats` times: a latency, and serialisations of a `parts`-th of the bytes, each so often.
  std::int64_t repeats = 1;
  std::int64_t parts = 1;
  Ps fixed_ps = 0;
  std::vector<std::pair<model::BytesPerSecond, std::int64_t>> serialisations;
  std::shared_ptr<const model::MeasuredTable> table;  // instead of all that

  Ps at(Bytes bytes) const;
  // Nothing where there is none.
  static std::optional<ClosedForm> of(const CollectiveSite& site);
  // Rings like the site's that run at the same time on all of these flows.
  static std::optional<ClosedForm> of_ring(const CollectiveSite& site, std::span<const Flow> flows);
  // Messages that leave together.
  static std::optional<ClosedForm> of_messages(const Topology& topology,
                                               const EngineOptions& options,
                                               std::span<const Flow> flows);
};

// Duration when all ranks start together and nobody else uses the links: the same for folded and
// expanded evaluation. A closed form where tests prove it equal to the simulation (ring on private
// equal routes; direct on a switch, fully connected, or unaware whole-ring network; measured), else
// the simulation. Throws InvalidTopology or OutOfRange.
Ps isolated_duration(const CollectiveSite& site, Bytes bytes);
// The same for many sizes; `out` has one entry per size. Simulated durations share one engine.
void isolated_durations(const CollectiveSite& site, std::span<const Bytes> bytes,
                        std::span<Ps> out);
// Only the closed form; nothing where there is none.
std::optional<Ps> closed_form(const CollectiveSite& site, Bytes bytes);

// Runs one collective at a time on an engine of its own, for any size and any start times.
class IsolatedSimulation {
 public:
  explicit IsolatedSimulation(const CollectiveSite& site);
  // starts_ps and ends_ps have one entry per rank; times are relative to any common zero, spread
  // over < 2^60 ps.
  void run(Bytes bytes, std::span<const Ps> starts_ps, std::span<Ps> ends_ps);
  Ps duration(Bytes bytes);  // last end when all start at 0

 private:
  std::size_t num_ranks_;
  std::shared_ptr<const ExecutionGraph> graph_;
  Engine engine_;
  std::vector<std::int64_t> amounts_;
  std::vector<Ps> zeros_;
  std::vector<Ps> ends_;
};

}  // namespace astra_sim::engine
