// Messages of send and receive nodes: matched by tag, both ends and size, the k-th send with the
// k-th receive.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "strict/base/clock.h"
#include "strict/network/network.h"

namespace astra_sim::strict {

// Who waits for the end of a message: nodes of the workload, and (with the highest bit) of custom
// collectives.
struct MessageSink {
  virtual void message_done(std::uint32_t node) = 0;

 protected:
  ~MessageSink() = default;
};

class Messages {
 public:
  Messages(Clock& clock, Network& network, MessageSink& sink, bool rendezvous)
      : clock_(clock), network_(network), sink_(sink), rendezvous_(rendezvous) {}

  struct Key {
    std::uint32_t from, to, tag;
    std::int64_t bytes;
    bool operator==(const Key&) const = default;
  };
  void send(const Key& key, std::uint32_t node);
  void receive(const Key& key, std::uint32_t node);

  void arrival(std::uint32_t pair, std::uint32_t sender);
  void posted(std::uint32_t receiver) { sink_.message_done(receiver); }
  void control(std::uint32_t pair, std::uint32_t receiver);
  void control_ready(std::uint32_t pair, std::uint32_t sender) { transmit(pair, sender); }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  // Everything between two NPUs with one tag and size.
  struct Pair {
    Key key;
    std::uint32_t lane;                   // rendezvous
    std::deque<std::uint32_t> receivers;  // posted, no message yet
    std::uint32_t unclaimed = 0;          // messages without a receive
  };
  struct Sender {
    std::uint32_t pair;
    std::uint32_t node;
  };
  // Rendezvous: everything between two NPUs with one tag, whatever its size: control messages are
  // all alike.
  struct Lane {
    std::deque<Sender> senders;  // waiting for a receiver
    std::uint32_t controls = 0;  // messages of receivers without a send
  };
  std::uint32_t pair(const Key& key);
  std::uint32_t lane(Key key);
  void transmit(std::uint32_t pair, std::uint32_t sender);
  void post(std::uint32_t pair, std::uint32_t receiver);

  Clock& clock_;
  Network& network_;
  MessageSink& sink_;
  bool rendezvous_;
  std::vector<Pair> pairs_;
  std::vector<Lane> lanes_;
  std::unordered_map<Key, std::uint32_t, Hash> index_;
  std::unordered_map<Key, std::uint32_t, Hash> lane_index_;
};

}  // namespace astra_sim::strict
