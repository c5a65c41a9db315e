#include "strict/network/network.h"

#include <utility>

#include "model/base/input_error.h"

namespace astra_sim::strict {

using config::NetworkShape;

Network::Network(const config::NetworkConfig& config, bool aware, Clock& clock)
    : clock_(clock), aware_(aware) {
  std::uint32_t stride = 1;
  for (const config::NetworkDimension& dimension : config.dimensions) {
    const double bytes_per_ns = dimension.bandwidth_gb_per_s * (1 << 30) / 1'000'000'000;
    dimensions_.push_back(
        {dimension.shape, dimension.npus, stride, bytes_per_ns, dimension.latency_ns});
    stride *= dimension.npus;
  }
  if (!aware) return;
  if (dimensions_.size() != 1) {
    throw model::InputError(
        "congestion-aware has one dimension under strict rules, as upstream; the network has " +
        std::to_string(dimensions_.size()) + " (congestion-unaware takes them)");
  }
  const std::uint32_t npus = dimensions_[0].npus;
  if (dimensions_[0].shape == NetworkShape::kRing && npus == 2) {
    throw model::InputError(
        "congestion-aware has no Ring of 2 NPUs under strict rules, as upstream; FullyConnected is "
        "the same "
        "wiring");
  }
  const bool full = dimensions_[0].shape == NetworkShape::kFullyConnected;
  if (full && npus > 16384) {
    throw model::InputError(
        "congestion-aware takes FullyConnected up to 16384 NPUs (a link per pair), not " +
        std::to_string(npus));
  }
  links_.resize(static_cast<std::size_t>(npus) * (full ? npus : 2));
}

// Only the lowest dimension in which the two differ is charged; they become the places within it.
const Network::Dimension* Network::differing(std::uint32_t& from, std::uint32_t& to) const {
  const Dimension* dimension = &dimensions_[0];
  std::uint32_t a = from % dimension->npus;
  std::uint32_t b = to % dimension->npus;
  while (a == b) {
    ++dimension;
    a = from / dimension->stride % dimension->npus;
    b = to / dimension->stride % dimension->npus;
  }
  from = a;
  to = b;
  return dimension;
}

inline std::uint32_t Network::first_link(std::uint32_t from, std::uint32_t to) const {
  const std::uint32_t npus = dimensions_[0].npus;
  switch (dimensions_[0].shape) {
    case NetworkShape::kSwitched:
      return from;
    case NetworkShape::kFullyConnected:
      return from * npus + to;
    case NetworkShape::kRing:
      break;
  }
  const std::uint32_t clockwise = to >= from ? to - from : to + npus - from;
  return npus - clockwise < clockwise ? 2 * from + 1 : 2 * from;
}

inline std::uint32_t Network::next_link(std::uint32_t link, std::uint32_t to) const {
  const std::uint32_t npus = dimensions_[0].npus;
  switch (dimensions_[0].shape) {
    case NetworkShape::kSwitched:
      return link < npus ? npus + to : kNone;
    case NetworkShape::kFullyConnected:
      return kNone;
    case NetworkShape::kRing:
      break;
  }
  const std::uint32_t device = link / 2;
  const bool back = link % 2 != 0;
  const std::uint32_t reached =
      back ? (device == 0 ? npus - 1 : device - 1) : (device + 1 == npus ? 0 : device + 1);
  return reached == to ? kNone : 2 * reached + (back ? 1 : 0);
}

inline void Network::cross(const Message& message) {
  links_[message.link].busy = true;
  const std::uint32_t next = next_link(message.link, message.to);
  Event arrival = message.delivery;
  if (next != kNone) {
    Message rest = message;
    rest.link = next;
    arrival = {EventKind::kHop, keep(rest)};
  }
  clock_.global(message.arrival_ns, arrival);
  clock_.global(message.busy_ns, {EventKind::kLinkFree, message.link});
}

inline void Network::enter(const Message& message) {
  Link& link = links_[message.link];
  if (!link.busy) {
    cross(message);
    return;
  }
  const std::uint32_t at = keep(message);
  if (link.head == kNone) {
    link.head = at;
  } else {
    messages_[link.tail].next = at;
  }
  link.tail = at;
}

void Network::hop(std::uint32_t message) { enter(take_out(message)); }

void Network::send_aware(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Event delivery) {
  const Cost& one_link = cost(bytes);
  enter({delivery, first_link(from, to), to, one_link.arrival_ns, one_link.busy_ns});
}

void Network::link_free(std::uint32_t at) {
  Link& link = links_[at];
  if (link.head == kNone) {
    link.busy = false;
    return;
  }
  const Message message = take_out(std::exchange(link.head, messages_[link.head].next));
  cross(message);
}

std::uint32_t Network::keep(const Message& message) {
  if (free_ == kNone) {
    free_ = static_cast<std::uint32_t>(messages_.size());
    messages_.emplace_back().next = kNone;
  }
  const std::uint32_t at = free_;
  free_ = messages_[at].next;
  messages_[at] = message;
  messages_[at].next = kNone;
  return at;
}

Network::Message Network::take_out(std::uint32_t at) {
  const Message message = messages_[at];
  messages_[at].next = std::exchange(free_, at);
  return message;
}

}  // namespace astra_sim::strict
