// Network: moves messages between devices and reports arrivals; one interface, several models of congestion.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/events.h"
#include "model/results.h"
#include "model/topology.h"
#include "model/types.h"

namespace astra_sim::engine {

using model::Bytes;
using model::DeviceId;
using model::LinkCounters;
using model::Topology;

enum class NetworkKind : std::uint8_t {
    congestion_unaware,  // hops * latency + one serialisation; messages never wait for each other
    congestion_aware,    // FIFO links, store and forward of whole messages
};

// One message. Timing and counting differ by the padding of equal chunks (execution rules: model/arithmetic.h).
struct Parcel {
    DeviceId from;
    DeviceId to;
    Bytes timing_bytes;
    Bytes exact_bytes;
    std::uint64_t token;  // a packed Token, handed back on arrival
};

class Network {
public:
    virtual ~Network() = default;
    // Takes the parcel at `now` (never earlier than a previous call) and posts its arrival, later or now, as an event.
    // Returns when it has left the sender's port. Needs from != to, both devices of the topology.
    virtual Ps send(Ps now, const Parcel& parcel) = 0;
    // Continues a parcel at a switch or a device in between; `token` is the hop event's.
    virtual void pass_on(Ps now, std::uint64_t token) = 0;
    // One entry per link of the topology.
    virtual std::vector<LinkCounters> counters() const = 0;
};

// `queue` must outlive the network; every arrival is delayed by endpoint_delay_ps at the receiver.
std::unique_ptr<Network> make_network(NetworkKind kind, std::shared_ptr<const Topology> topology, EventQueue& queue,
                                      Ps endpoint_delay_ps);

}  // namespace astra_sim::engine
