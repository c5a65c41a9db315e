// Hand-over to another network simulator: the messages of a run as a list, and the times that the
// other simulator found for them.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/network/network.h"

namespace astra_sim::engine {

// The `number`-th message (from 0) from one device to another, in the order in which they are sent.
struct MessageKey {
  DeviceId from;
  DeviceId to;
  std::uint32_t number;
  auto operator<=>(const MessageKey&) const = default;
};

struct SentMessage {
  MessageKey key;
  Bytes bytes;
  Ps at;
};

// From the start of a message to its arrival, without the endpoint delay.
struct MessageTimes {
  std::map<MessageKey, Ps> duration_ps;
  std::string source;  // for messages: where the times are from
};

// Passes on what it is given, and appends messages between devices to `sent`, which outlives it.
std::unique_ptr<Network> make_recording(std::unique_ptr<Network> network,
                                        std::vector<SentMessage>& sent);

// Every message takes the time that is given for it; links have no effect. Throws InvalidTopology
// for a message without a time, and for one that crosses given links: to a memory tier, or to a
// switch that reduces.
std::unique_ptr<Network> make_timed(std::shared_ptr<const MessageTimes> times, EventQueue& queue,
                                    Ps endpoint_delay_ps, std::size_t num_links);

}  // namespace astra_sim::engine
