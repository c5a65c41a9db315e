#include "afd/contended_afd.h"

#include <algorithm>
#include <stdexcept>

#include "afd/afd_graph.h"

namespace llmsim {

namespace {

constexpr std::size_t kNoPort = ~std::size_t{0};

StepGraph numbered(StepGraph graph) {
  number_rows(graph);
  return graph;
}

}  // namespace

ContendedAfdExecutor::ContendedAfdExecutor(AfdPricer pricer, StepGraph graph,
                                           std::vector<SharedPort> ports)
    : pricer_(std::move(pricer)),
      graph_(std::move(graph)),
      nodes_(numbered(unrolled(graph_))),
      ports_(std::move(ports)),
      at_once_(graph_, pricer_.num_members()),
      carry_(graph_),
      moving_(nodes_.nodes.size()),
      runs_(nodes_, *this) {
  for (const SharedPort& port : ports_)
    if (port.member < 0 || at(port.member) >= pricer_.num_members() || port.stage < 0 ||
        port.stage >= graph_.stages || port.flows.empty())
      throw std::invalid_argument("a port of no unit, or without a flow");
  for (const StepNode& node : nodes_.nodes) port_at_.push_back(port_of(node));
}

std::size_t ContendedAfdExecutor::port_of(const StepNode& node) const {
  const bool out = node.role == NodeRole::kM2nSend;
  if (!out && node.role != NodeRole::kM2nReceive) return kNoPort;
  const std::int32_t stage = node.stream / kNumDeviceStreams % graph_.stages;
  const auto found = std::ranges::find_if(ports_, [&](const SharedPort& port) {
    return port.member == node.member && port.stage == stage && port.out == out;
  });
  return found == ports_.end() ? kNoPort : static_cast<std::size_t>(found - ports_.begin());
}

void ContendedAfdExecutor::start(SharedNetwork* network) {
  if (network == nullptr)
    throw std::invalid_argument("rows that meet other transfers need the network");
  network_ = network;
  for (const SharedPort& port : ports_) bundles_.push_back(network->add_bundle(port.flows));
}

void ContendedAfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                                 StepSink& sink) {
  sink_ = &sink;
  pricer_.begin(batches);
  pricer_.fill(graph_, prices_);
  const std::vector<Ps> unknown(batches.size(), kNever);
  open_.push_back({AfdStep(pricer_), start, unknown, unknown, {}, batches.size()});
  runs_.begin(prices_, start);
}

bool ContendedAfdExecutor::moves(std::int64_t step, std::int32_t node, Ps begin, Ps now) {
  const StepPrices& prices = runs_.prices(step);
  const StepNode& moved = nodes_.nodes[at(node)];
  if (begins_unit(moved)) note_span(step, moved, begin, begin + prices.of(nodes_, moved, 0));
  const std::size_t port = port_at_[at(node)];
  if (port == kNoPort) return false;
  const std::int64_t bytes = prices.bytes[at(moved.price)];
  if (bytes == 0) return false;
  moving_[at(node)] = {begin, begin + prices.of(nodes_, moved, 0)};
  const auto token = (static_cast<std::uint64_t>(step) << 32) | static_cast<std::uint32_t>(node);
  network_->start_at(bundles_[port], bytes, begin, now, *this, token, Purpose::kM2n);
  return true;
}

void ContendedAfdExecutor::landed(TransferId, std::uint64_t token, Ps now) {
  const auto node = static_cast<std::int32_t>(token & 0xffffffffU);
  const auto step = static_cast<std::int64_t>(token >> 32);
  const Ps end = std::max(now, moving_[at(node)].alone);
  note_span(step, nodes_.nodes[at(node)], moving_[at(node)].begin, end);
  runs_.ended(step, node, end, now);
}

void ContendedAfdExecutor::note_span(std::int64_t step, const StepNode& node, Ps start,
                                     Ps end) const {
  if (NodeSpans* spans = pricer_.member(at(node.member)).spans())
    spans->add(step, nodes_, node, kAllRanks, start, end);
}

// All steps before this one have ended, since they had the same streams.
void ContendedAfdExecutor::member_ended(std::int64_t number, std::size_t member, Ps start, Ps end,
                                        Ps now) {
  Open& open = open_[static_cast<std::size_t>(number - first_)];
  if (open.at_once.empty()) {
    if (runs_.oldest() != number)
      throw std::logic_error("a step ends before the one that its streams ran last");
    std::ranges::copy(runs_.free(), carry_.free.begin());
    const auto ends = at_once_.ends(graph_, runs_.prices(number), open.start, carry_, timing_);
    open.at_once.assign(ends.begin(), ends.end());
  }
  open.starts[member] = start;
  open.ends[member] = end;
  const StepTimes times = open.step.times(pricer_, member, start, end, open.at_once[member]);
  if (--open.left == 0) {
    open.step.count(pricer_, open.starts, open.ends);
    open_.pop_front();
    ++first_;
  }
  sink_->timed(member, times, now);
}

}  // namespace llmsim
