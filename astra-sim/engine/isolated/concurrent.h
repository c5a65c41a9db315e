// Collectives or messages that start together on a network that nobody else uses: how long until
// the last of them ends, by closed form where that is exact, else by simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/isolated/isolated.h"
#include "engine/isolated/schedule_times.h"
#include "model/collective/algorithm_word.h"

namespace astra_sim::engine {

struct Concurrent {
  std::shared_ptr<const Topology> topology;
  EngineOptions options;
  // In rank order, one collective each; of messages: sender and receiver.
  std::vector<std::vector<DeviceId>> groups;
  std::optional<model::CollectiveKind> kind;  // none: messages of the whole size
  model::AlgorithmChoice choice{};

  CollectiveSite site(std::size_t group) const;
};

class ConcurrentDurations {
 public:
  // Throws InvalidTopology where a group is not possible, or the algorithm on it.
  explicit ConcurrentDurations(Concurrent what);
  // Messages at both of their ends that the simulation of one size has; 0: nothing is simulated.
  std::int64_t num_simulated() const { return num_simulated_; }
  // From the common start until the last end; one entry per size. Throws OutOfRange.
  void durations(std::span<const Bytes> bytes, std::span<Ps> out);
  // By group and device: when it is done with its part, after the common start. Of a message, both
  // of its ends are done when it is there. Throws OutOfRange.
  std::vector<std::vector<Ps>> ends(Bytes bytes);

 private:
  struct Simulation;
  void prepare();
  bool overflows() const;
  bool close();
  bool walk();
  void simulate();

  Concurrent what_;
  std::optional<ClosedForm> closed_;
  std::vector<ScheduleTimes> walks_;  // by group, without those that are like another
  std::shared_ptr<Simulation> simulation_;
  std::int64_t num_simulated_ = 0;
};

// Each rank's share of so many bytes in turn, along a chain that passes pieces on as they come
// (without an end, so that a share takes one serialisation and the chain's latencies), in all
// groups at once. A link that several hops of a share's chains cross carries it as often.
void broadcasts_in_turn(const Topology& topology, std::span<const std::vector<DeviceId>> groups,
                        std::span<const Bytes> bytes, std::span<Ps> out);

}  // namespace astra_sim::engine
