#include "strict/loop/simulation.h"

#include <algorithm>
#include <utility>

#include "model/base/input_error.h"
#include "strict/base/clock.h"
#include "strict/collectives/collectives.h"
#include "strict/collectives/custom.h"
#include "strict/loop/memory.h"
#include "strict/loop/waiting.h"
#include "strict/loop/workload.h"
#include "strict/network/messages.h"
#include "strict/network/network.h"

namespace astra_sim::strict {

namespace {

EndpointCosts endpoint_costs(const Options& options, const config::SystemConfig& system) {
  EndpointCosts costs;
  costs.delay_ns = whole_ns(static_cast<double>(system.endpoint_delay_ns) * options.injection_scale,
                            "an endpoint delay");
  costs.memory_bytes_per_s = system.local_memory_gb_per_s * 1e9;
  costs.rendezvous = options.rendezvous;
  return costs;
}

class Simulation {
 public:
  Simulation(const Options& options, const Inputs& inputs, Trace& trace)
      : clock_(inputs.network.npus()),
        network_(inputs.network, options.aware, clock_),
        plans_(inputs.network, inputs.system, inputs.groups),
        workload_(trace, inputs.system),
        memory_(inputs.memory, clock_, inputs.network.npus()),
        messages_(clock_, network_, workload_, options.rendezvous),
        custom_(clock_, messages_, plans_, workload_),
        collectives_(clock_, network_, plans_, workload_, inputs.system,
                     endpoint_costs(options, inputs.system), inputs.network.npus(),
                     options.queues_per_dimension) {
    workload_.connect({clock_, collectives_, custom_, messages_, memory_, plans_});
  }

  // Members of a collective may meet, and disagree, in any event.
  void run() try {
    workload_.start();
    for (auto events = clock_.take(); !events.empty(); events = clock_.take()) {
      events_ += events.size();
      for (const Event& event : events) {
        if (event.of_one_npu()) {
          carry_out_joined(event);
        } else {
          carry_out(event);
        }
      }
    }
  } catch (const CollectiveMismatch& mismatch) {
    workload_.fail(mismatch);
  }

  Workload& workload() { return workload_; }
  WaitingStreams waiting_streams() const { return collectives_.waiting_streams(); }
  std::uint64_t events() const { return events_; }

 private:
  void carry_out(const Event& event) {
    switch (event.kind()) {
      case EventKind::kArrival:
        return collectives_.arrival(event.a(), event.b);
      case EventKind::kHop:
        return network_.hop(event.a());
      case EventKind::kLinkFree:
        return network_.link_free(event.a());
      case EventKind::kReceivePosted:
        return collectives_.receive_posted(event.a());
      case EventKind::kControl:
        return collectives_.control(event.a(), event.b);
      case EventKind::kControlReady:
        return collectives_.control_ready(event.a());
      case EventKind::kPlainArrival:
        return messages_.arrival(event.a(), event.b);
      case EventKind::kPlainPosted:
        return messages_.posted(event.a());
      case EventKind::kPlainControl:
        return messages_.control(event.a(), event.b);
      case EventKind::kPlainReady:
        return messages_.control_ready(event.a(), event.b);
      default:
        return;
    }
  }

  // With what has joined it.
  void carry_out_joined(Event event) {
    const std::uint32_t npu = event.npu();
    carry_out_local(event);
    for (; clock_.pop_joined(npu, event); ++events_) carry_out_local(event);
  }

  void carry_out_local(const Event& event) {
    switch (event.kind()) {
      case EventKind::kCredit:
        return collectives_.credit(event.a(), event.b);
      case EventKind::kReduce:
        return collectives_.reduce(event.a(), event.b);
      case EventKind::kTree:
        return collectives_.tree(event.a(), static_cast<TreeStep>(event.b));
      case EventKind::kTreeReduce:
        return collectives_.tree_reduce(event.a(), static_cast<TreeStep>(event.b));
      case EventKind::kNodeDone:
        return workload_.node_done(event.a());
      case EventKind::kCustomDone:
        return custom_.node_done(event.a());
      case EventKind::kMemoryFree:
        return memory_.server_free(event.a());
      default:
        return;
    }
  }

  Clock clock_;
  Network network_;
  Plans plans_;
  Workload workload_;
  Memory memory_;
  Messages messages_;
  CustomCollectives custom_;
  Collectives collectives_;
  std::uint64_t events_ = 0;
};

}  // namespace

namespace {

void load_all(const std::string& prefix, const chakra::FieldRules& rules, Trace& trace) {
  constexpr std::size_t kMostReserved = std::size_t{1} << 20;
  for (std::uint32_t npu = 0; npu < rules.npus; ++npu) {
    load_trace(prefix + "." + std::to_string(npu) + ".et", npu, rules, trace);
    if (npu > 0) continue;
    // NPUs mostly run the same program: as many nodes again for each spares the copies of growing.
    trace.nodes.reserve(std::min(trace.nodes.size() * rules.npus, kMostReserved));
    trace.children.reserve(std::min(trace.children.size() * rules.npus, kMostReserved));
  }
}

}  // namespace

Outcome simulate(const Options& options, const Inputs& inputs) {
  if (inputs.network.file != nullptr) {
    throw model::InputError(
        "topology files run under --rules default; strict rules read upstream's network YAML");
  }
  if (inputs.system.shared_bus) {
    throw model::InputError(inputs.system.path +
                            ": model-shared-bus is not supported; 0 gives fixed endpoint delays");
  }
  Outcome outcome;
  chakra::FieldRules rules;
  rules.replay_only = inputs.system.replay_only;
  rules.roofline = inputs.system.roofline;
  rules.npus = inputs.network.npus();
  load_all(options.workload, rules, outcome.trace);
  Simulation simulation(options, inputs, outcome.trace);
  simulation.run();
  outcome.events = simulation.events();
  for (std::uint32_t npu = 0; npu < rules.npus; ++npu)
    outcome.finish_ns.push_back(simulation.workload().finish_ns(npu));
  outcome.journal = std::move(simulation.workload().journal());
  outcome.unfinished_nodes =
      explain_waiting(outcome.trace, simulation.waiting_streams(), outcome.unfinished);
  return outcome;
}

}  // namespace astra_sim::strict
