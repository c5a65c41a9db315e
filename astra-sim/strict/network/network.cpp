#include "strict/network/network.h"

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

void Network::send_aware(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Event delivery) {
  const Cost& one_link = cost(bytes);
  if (free_ == kNone) {
    free_ = static_cast<std::uint32_t>(messages_.size());
    messages_.emplace_back().next = kNone;
  }
  const std::uint32_t at = free_;
  free_ = messages_[at].next;
  messages_[at] = {delivery, first_link(from, to), to,
                   kNone,    one_link.arrival_ns,  one_link.busy_ns};
  enter(at);
}

std::uint32_t Network::first_link(std::uint32_t from, std::uint32_t to) const {
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

std::uint32_t Network::next_link(std::uint32_t link, std::uint32_t to) const {
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

void Network::enter(std::uint32_t message) {
  Link& link = links_[messages_[message].link];
  if (!link.busy) {
    take(message);
    return;
  }
  if (link.head == kNone) {
    link.head = message;
  } else {
    messages_[link.tail].next = message;
  }
  link.tail = message;
}

void Network::take(std::uint32_t at) {
  const Message& message = messages_[at];
  links_[message.link].busy = true;
  clock_.global(message.arrival_ns, {EventKind::kHop, at});
  clock_.global(message.busy_ns, {EventKind::kLinkFree, message.link});
}

bool Network::hop(std::uint32_t at, Event& delivery) {
  Message& message = messages_[at];
  const std::uint32_t link = next_link(message.link, message.to);
  if (link == kNone) {
    delivery = message.delivery;
    message.next = free_;
    free_ = at;
    return true;
  }
  message.link = link;
  enter(at);
  return false;
}

void Network::link_free(std::uint32_t at) {
  Link& link = links_[at];
  if (link.head == kNone) {
    link.busy = false;
    return;
  }
  const std::uint32_t message = link.head;
  link.head = messages_[message].next;
  messages_[message].next = kNone;
  take(message);
}

}  // namespace astra_sim::strict
