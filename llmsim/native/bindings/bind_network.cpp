// The shared network for Python: its description, and a probe that runs transfers alone.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/bindings.h"
#include "group/posted_reads.h"
#include "kv_transfer/kv_transfer.h"
#include "kv_transfer/outside_transfers.h"
#include "network/outside_network.h"
#include "network/shared_network.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

using Ports = std::pair<std::int64_t, std::int64_t>;  // out, in; -1: none
using Part = std::tuple<std::vector<std::int32_t>, std::int64_t, std::int64_t, std::int32_t>;
using Share = std::tuple<std::int32_t, std::int32_t, std::vector<Part>>;
using Start = std::tuple<Ps, NetworkNodeId, NetworkNodeId, std::int64_t>;

Port port_of(const Ports& ports) {
  const auto link = [](std::int64_t id) {
    return id < 0 ? kNoLink : static_cast<NetworkLinkId>(id);
  };
  return {link(ports.first), link(ports.second)};
}

class Probe final : public TransferOwner {
 public:
  explicit Probe(std::size_t n) : landed_at(n, kNever) {}
  void landed(TransferId, std::uint64_t token, Ps now) override { landed_at[token] = now; }
  std::vector<Ps> landed_at;
};

// Starts each (at, from, to, bytes), in order of time, and runs to the end as the loop would.
nb::tuple probe(const NetworkConfig& config, const std::vector<Start>& starts) {
  SharedNetwork network(config);
  Probe owner(starts.size());
  std::size_t next = 0;
  Ps now = 0;
  while (next < starts.size() || network.next_event() != kEndOfTime) {
    const Ps start = next < starts.size() ? std::get<0>(starts[next]) : kEndOfTime;
    now = std::min(start, network.next_event());
    if (network.next_event() == now) network.advance(now);
    for (; next < starts.size() && std::get<0>(starts[next]) == now; ++next) {
      const auto& [at, from, to, bytes] = starts[next];
      network.transfer(from, to, bytes, now, owner, next, Purpose::kOther);
    }
    network.settle(now);
  }
  std::vector<std::int64_t> bytes, busy;
  for (std::size_t link = 0; link < network.num_links(); ++link) {
    const NetworkLinkCounters counters =
        network.link_counters(static_cast<NetworkLinkId>(link), now);
    bytes.push_back(counters.bytes);
    busy.push_back(counters.busy);
  }
  return nb::make_tuple(to_array(owner.landed_at), to_array(bytes), to_array(busy));
}

void bind_kv_transfer(nb::module_& m) {
  nb::class_<KvTransferConfig>(m, "KvTransferConfig",
                               "How the KV of prompts goes from prefill groups to decode groups.")
      .def(
          "__init__",
          [](KvTransferConfig* c, bool push, bool layerwise,
             std::vector<std::vector<NetworkNodeId>> places, bool chunked) {
            new (c) KvTransferConfig{push, layerwise, chunked, std::move(places), {}, {}};
          },
          "push"_a, "layerwise"_a, "places"_a, "chunked"_a = false,
          "places: of every group's ranks, by group; chunked: the KV of a chunk of a prompt moves "
          "when its step has ended.")
      .def(
          "add_table",
          [](KvTransferConfig& c, const std::vector<Share>& shares, std::int32_t block_size,
             bool prefill_all_but_last_token, std::pair<Ps, Ps> posting_ps) {
            if (block_size < 1) throw std::invalid_argument("blocks have at least one token");
            KvTable table{
                {}, block_size, prefill_all_but_last_token, {posting_ps.first, posting_ps.second}};
            for (const auto& [from, to, parts] : shares) {
              KvShare& share = table.shares.emplace_back(KvShare{from, to, {}});
              for (const auto& [layers, per_token, state, tail] : parts)
                share.parts.push_back({layers, per_token, state, tail});
            }
            c.tables.push_back(std::move(table));
            return c.tables.size() - 1;
          },
          "shares"_a, "block_size"_a = 1, "prefill_all_but_last_token"_a = false,
          "posting_ps"_a = std::pair<Ps, Ps>{0, 0},
          "Tuples (prefill rank, decode rank, parts) with parts (layers, bytes per token and "
          "layer, bytes of state per layer, blocks at the end of a prompt that are kept or 0 for "
          "all); posting_ps is what a decode worker's host takes to post reads: for each rank that "
          "it reads from, and for each block of a layer. Returns the table's number.")
      .def_ro("push", &KvTransferConfig::push, "Whether the prefill group writes the KV.")
      .def_ro("layerwise", &KvTransferConfig::layerwise,
              "Whether the KV of a layer moves while the prefill goes on.")
      .def_ro("chunked", &KvTransferConfig::chunked,
              "Whether the KV of a chunk of a prompt moves when its step has ended.")
      .def(
          "add_route",
          [](KvTransferConfig& c, std::int32_t prefill_group, std::int32_t decode_group,
             std::int32_t table) { c.routes.push_back({prefill_group, decode_group, table}); },
          "prefill_group"_a, "decode_group"_a, "table"_a);
}

void bind_outside_transfers(nb::module_& m) {
  nb::class_<PostedReads>(m, "PostedReads",
                          "Reads of KV that the hosts of an engine's workers post before a batch.")
      .def(nb::init<>())
      .def("add", &PostedReads::add, "posts_ps"_a, "now_ps"_a,
           "They are given to the hosts, along with the next batch or without one.")
      .def("take", &PostedReads::take, "now_ps"_a,
           "What is left of them, in ps, for the hosts of a batch that is formed then.");
  nb::class_<OutsideNetwork>(m, "OutsideNetwork", "The network of engines outside of a simulation.")
      .def(nb::init<NetworkConfig>(), "config"_a)
      .def("run_out", &OutsideNetwork::run_out,
           "All that is under way lands, whoever hears of it.");
  nb::class_<OutsideTransfers>(m, "OutsideTransfers",
                               "KV of prompts that moves between engines outside of a simulation.")
      .def(nb::init<KvTransferConfig, std::shared_ptr<OutsideNetwork>>(), "config"_a, "network"_a)
      .def(
          "reserved",
          [](OutsideTransfers& t, RequestId request, std::pair<std::int32_t, std::int32_t> groups,
             std::int32_t tokens, std::int32_t cached, Ps now_ps) {
            return t.reserved(request, {groups.first, groups.second, 0}, tokens, cached, now_ps);
          },
          "request"_a, "groups"_a, "tokens"_a, "cached"_a, "now_ps"_a,
          "A decode group has reserved blocks for a prompt of a prefill group (`groups`: that one, "
          "then the decode group), of which it has `cached` tokens; returns how long its workers "
          "post the reads, in ps.")
      .def("sends", &OutsideTransfers::sends, "request"_a, "tokens"_a, "now_ps"_a,
           "Where KV is pushed: the prefill group has computed so many leading tokens of the "
           "prompt, whose KV begins to move.")
      .def(
          "withdrawn",
          [](OutsideTransfers& t, RequestId request, std::pair<std::int32_t, std::int32_t> groups,
             Ps now_ps) { t.withdrawn(request, {groups.first, groups.second, 0}, now_ps); },
          "request"_a, "groups"_a, "now_ps"_a,
          "Where KV is pushed: the decode group no longer wants the KV, and keeps its memory until "
          "nothing of it is under way.")
      .def(
          "dropped",
          [](OutsideTransfers& t, RequestId request, std::pair<std::int32_t, std::int32_t> groups,
             Ps now_ps) { t.dropped(request, {groups.first, groups.second, 0}, now_ps); },
          "request"_a, "groups"_a, "now_ps"_a,
          "Where KV is pulled: the decode group has dropped a prompt that has not landed. Before "
          "its "
          "blocks are reserved, the prefill group is told that nobody will read it.")
      .def("take_forgotten", &OutsideTransfers::take_forgotten,
           "Where KV is pulled: the requests of which prefill groups have been told since the last "
           "call that nobody will read their KV.")
      .def("take_told", &OutsideTransfers::take_told,
           "Where KV is pushed: the requests of which prefill groups have been told since the last "
           "call that blocks are reserved, in that order.")
      .def("take_refused", &OutsideTransfers::take_refused,
           "The requests of which prefill groups have been told since the last call that nobody "
           "wants their KV.")
      .def("take_drained", &OutsideTransfers::take_drained,
           "The requests of which decode groups have been told since the last call that nothing of "
           "their KV is under way.")
      .def(
          "next_event_ps",
          [](const OutsideTransfers& t) -> std::optional<Ps> {
            if (t.next_event() == kEndOfTime) return std::nullopt;
            return t.next_event();
          },
          "When something may land; None: nothing moves.")
      .def("advance", &OutsideTransfers::advance, "now_ps"_a,
           "Time passes; returns the requests whose KV has landed, in that order.");
}

}  // namespace

void bind_network(nb::module_& m) {
  nb::enum_<Sharing>(m, "Sharing").value("FAIR", Sharing::kFair).value("FIFO", Sharing::kFifo);
  nb::enum_<Purpose>(m, "Purpose", "What a transfer of the network is for.")
      .value("KV_HANDOVER", Purpose::kKvHandover)
      .value("KV_TIER", Purpose::kKvTier)
      .value("WEIGHTS", Purpose::kWeights)
      .value("EXPERTS", Purpose::kExperts)
      .value("COLLECTIVE", Purpose::kCollective)
      .value("OTHER", Purpose::kOther)
      .value("M2N", Purpose::kM2n);
  nb::class_<NetworkConfig>(m, "NetworkConfig",
                            "The cluster's shared network: links, and the places that they join.")
      .def(
          "__init__",
          [](NetworkConfig* c, Sharing sharing) { new (c) NetworkConfig{sharing, {}, {}, {}, 0}; },
          "sharing"_a)
      .def(
          "add_link",
          [](NetworkConfig& c, std::int64_t bytes_per_s, Ps latency_ps) {
            c.links.push_back({bytes_per_s, latency_ps});
            return c.links.size() - 1;
          },
          "bytes_per_s"_a, "latency_ps"_a, "A directed link; returns its number.")
      .def_ro("first_of_topology", &NetworkConfig::first_of_topology,
              "The number of the topology's first link.")
      .def(
          "port",
          [](const NetworkConfig& c, NetworkNodeId place, bool far, bool out) {
            const NetworkNode& node = c.places.at(static_cast<std::size_t>(place));
            const Port& port = far ? node.far : node.near;
            return out ? port.out : port.in;
          },
          "place"_a, "far"_a, "out"_a, "The number of a place's link in one direction.")
      .def(
          "add_place",
          [](NetworkConfig& c, std::int32_t island, const Ports& near, const Ports& far,
             std::int64_t device, Ps near_latency_ps, Ps far_latency_ps,
             const std::optional<Ports>& host, Ps host_latency_ps, bool below) {
            c.places.push_back({island, port_of(near), port_of(far),
                                device < 0 ? astra_sim::model::kNone
                                           : static_cast<astra_sim::model::DeviceId>(device),
                                near_latency_ps, far_latency_ps, port_of(host.value_or(near)),
                                host_latency_ps, below});
            return c.places.size() - 1;
          },
          "island"_a, "near"_a, "far"_a, "device"_a = -1, "near_latency_ps"_a = 0,
          "far_latency_ps"_a = 0, "host"_a = nb::none(), "host_latency_ps"_a = 0, "below"_a = false,
          "A memory; returns its number. near, far: numbers of the links (out, in), -1: none. "
          "island -1: near to all. "
          "device: its number in the topology, whose routes it takes to other devices. "
          "near_latency_ps, "
          "far_latency_ps: of the cluster's link that KV crosses on its way out, where the out "
          "link is the memory's "
          "own; -1: the reader's host_latency_ps. host: links (out, in) to places `below` on the "
          "island, those of near if None. host_latency_ps: of the link that KV from places below "
          "crosses.")
      .def(
          "add_topology",
          [](NetworkConfig& c, std::shared_ptr<astra_sim::model::Topology> topology) {
            c.add_topology(std::move(topology));
          },
          "topology"_a, "Its links become links of the network.")
      .def_rw("incast", &NetworkConfig::incast)
      .def_prop_ro("num_links", [](const NetworkConfig& c) { return c.links.size(); })
      .def_prop_ro("num_places", [](const NetworkConfig& c) { return c.places.size(); })
      .def(
          "route",
          [](const NetworkConfig& c, NetworkNodeId from, NetworkNodeId to) {
            SharedNetwork network(c);
            const auto links = network.route(from, to);
            return std::vector<NetworkLinkId>(links.begin(), links.end());
          },
          "sender"_a, "receiver"_a, "The numbers of the links from one place to another, in order.")
      .def(
          "bytes_per_s",
          [](const NetworkConfig& c, std::size_t link) { return c.links.at(link).bytes_per_s; },
          "link"_a)
      .def("probe", &probe, "starts"_a,
           "Runs transfers (at_ps, from, to, bytes), in order of time; arrays: landed_ps, bytes "
           "per link, busy ps per "
           "link.");
  bind_kv_transfer(m);
  bind_outside_transfers(m);
}

}  // namespace llmsim
