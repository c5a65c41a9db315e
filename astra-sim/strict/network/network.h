// The two analytical networks under upstream's rules: doubles truncated to ns, GB = 2^30.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "formats/config/network.h"
#include "strict/base/clock.h"
#include "strict/base/whole_ns.h"

namespace astra_sim::strict {

inline constexpr std::int64_t kControlBytes = 8192;  // the message that a rendezvous begins with

class Network {
 public:
  // Throws model::InputError where the aware network cannot carry the configuration.
  Network(const config::NetworkConfig& config, bool aware, Clock& clock);

  // `delivery` becomes a global event when the message is at `to`. Needs from != to.
  void send(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Event delivery) {
    if (aware_) {
      send_aware(from, to, bytes, delivery);
    } else {
      clock_.global(delay(from, to, bytes), delivery);
    }
  }

  // The message is at the end of a link, and there is another one.
  void hop(std::uint32_t message);
  void link_free(std::uint32_t link);

 private:
  struct Dimension {
    config::NetworkShape shape;
    std::uint32_t npus;
    std::uint32_t stride;
    double bytes_per_ns;
    double latency_ns;
  };
  struct Message {
    Event delivery;
    std::uint32_t link;  // the next one
    std::uint32_t to;
    Ns arrival_ns;               // one link: latency and serialisation
    Ns busy_ns;                  // serialisation
    std::uint32_t next = kNone;  // in the queue of the link, or among the free
  };
  struct Link {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    bool busy = false;
  };

  struct Delay {
    std::int64_t bytes = -1;
    std::uint32_t hops = 0;
    const Dimension* dimension = nullptr;
    Ns delay_ns = 0;
  };
  // One link: what the last size that was asked for costs (sizes repeat, divisions are slow).
  struct Cost {
    std::int64_t bytes = -1;
    Ns arrival_ns = 0;
    Ns busy_ns = 0;
  };
  const Cost& cost(std::int64_t bytes) {
    if (bytes == last_cost_.bytes) return last_cost_;
    const double serialisation = static_cast<double>(bytes) / dimensions_[0].bytes_per_ns;
    last_cost_ = {bytes, whole_ns(dimensions_[0].latency_ns + serialisation, "a message"),
                  whole_ns(serialisation, "a message")};
    return last_cost_;
  }
  Ns delay(std::uint32_t from, std::uint32_t to, std::int64_t bytes) {
    const Dimension* dimension = &dimensions_[0];
    if (dimensions_.size() > 1) dimension = differing(from, to);
    const std::uint32_t hop_count = hops(*dimension, from, to);
    if (bytes != last_delay_.bytes || hop_count != last_delay_.hops ||
        dimension != last_delay_.dimension) {
      last_delay_ = {bytes, hop_count, dimension,
                     whole_ns(hop_count * dimension->latency_ns +
                                  static_cast<double>(bytes) / dimension->bytes_per_ns,
                              "a message")};
    }
    return last_delay_.delay_ns;
  }
  const Dimension* differing(std::uint32_t& from, std::uint32_t& to) const;
  static std::uint32_t hops(const Dimension& dimension, std::uint32_t from, std::uint32_t to) {
    if (dimension.shape != config::NetworkShape::kRing) {
      return dimension.shape == config::NetworkShape::kSwitched ? 2 : 1;
    }
    const std::uint32_t clockwise = to >= from ? to - from : to + dimension.npus - from;
    return std::min(clockwise, dimension.npus - clockwise);
  }
  void send_aware(std::uint32_t from, std::uint32_t to, std::int64_t bytes, Event delivery);
  void enter(const Message& message);
  void cross(const Message& message);
  // Messages that wait for a link, or for the end of one that is not their last.
  std::uint32_t keep(const Message& message);
  Message take_out(std::uint32_t message);
  std::uint32_t first_link(std::uint32_t from, std::uint32_t to) const;
  std::uint32_t next_link(std::uint32_t link, std::uint32_t to) const;  // kNone: it has arrived

  Clock& clock_;
  bool aware_;
  std::vector<Dimension> dimensions_;
  std::vector<Link>
      links_;  // aware: ring 2i clockwise, 2i + 1 back; switch i up, n + i down; else from * n + to
  std::vector<Message> messages_;
  std::uint32_t free_ = kNone;
  Cost last_cost_;
  Delay last_delay_;
};

}  // namespace astra_sim::strict
