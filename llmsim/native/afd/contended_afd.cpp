#include "afd/contended_afd.h"

#include <algorithm>
#include <stdexcept>

#include "afd/afd_graph.h"

namespace llmsim {

namespace {

constexpr std::size_t kNoPort = ~std::size_t{0};
constexpr std::uint64_t kEnd = std::uint64_t{1} << 31;  // of a member, in place of a node

StepGraph numbered(StepGraph graph) {
  number_rows(graph);
  return graph;
}

std::uint64_t token_of(std::int64_t step, std::uint64_t what) {
  return static_cast<std::uint64_t>(step) << 32 | what;
}

}  // namespace

ContendedAfdExecutor::ContendedAfdExecutor(AfdPricer pricer, StepGraph graph,
                                           std::vector<SharedPort> ports, bool exact)
    : pricer_(std::move(pricer)),
      graph_(std::move(graph)),
      nodes_(numbered(unrolled(graph_))),
      ports_(std::move(ports)),
      exact_(exact),
      at_once_(graph_, pricer_.num_members()),
      carry_(graph_),
      moving_(nodes_.nodes.size()),
      runs_(nodes_, *this) {
  for (const SharedPort& port : ports_)
    if (port.member < 0 || at(port.member) >= pricer_.num_members() || port.stage < 0 ||
        port.stage >= graph_.stages || port.flows.empty())
      throw std::invalid_argument("a port of no unit, or without a flow");
  for (const StepNode& node : nodes_.nodes) port_at_.push_back(port_of(node));
  for (const Block& block : graph_.blocks) {
    for (std::int32_t i = block.first; i < block.last; ++i)
      if (const std::size_t port = port_of(graph_.nodes[at(i)]); port != kNoPort)
        rows_.push_back({at(i), port, block.repeat});
  }
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

void ContendedAfdExecutor::start(SharedNetwork* network, Ps /*now*/) {
  if (network == nullptr)
    throw std::invalid_argument("rows that meet other transfers need the network");
  network_ = network;
  std::vector<std::int64_t> rates;
  for (const SharedPort& port : ports_) {
    bundles_.push_back(network->add_bundle(port.flows));
    rates.push_back(pricer_.bytes_per_s(at(port.member)));
  }
  folds_ = !exact_ && network->known_alone(bundles_, rates);
}

void ContendedAfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                                 StepSink& sink) {
  sink_ = &sink;
  pricer_.begin(batches);
  const std::vector<Ps> unknown(batches.size(), kNever);
  const std::vector<bool> nobody(batches.size(), false);
  open_.push_back(
      {AfdStep(pricer_), start, {}, unknown, unknown, {}, nobody, batches.size(), false, {}, {}});
  Open& step = open_.back();
  pricer_.fill(graph_, step.prices);
  if (mode_ == Mode::kFolded) return fold(last(), start.now);
  runs_.begin(step.prices, start, start.now);
  if (mode_ == Mode::kFolding) fold_all(start.now);
}

// At the first row of a step, when all steps before it are done, and nobody is on the ports.
bool ContendedAfdExecutor::may_fold(std::int64_t step) {
  return folds_ && mode_ == Mode::kRuns && runs_.oldest() == step && step >= first_ &&
         !open(step).moved && pricer_.member(0).spans() == nullptr && network_->silent(bundles_);
}

// No row of an open step has begun.
void ContendedAfdExecutor::fold_all(Ps now) {
  std::ranges::copy(runs_.free(), carry_.free.begin());
  if (!network_->watch(bundles_, *this, now)) return run_again(now, carry_.free);
  runs_.restart(first_, carry_.free);
  mode_ = Mode::kFolded;
  const std::int64_t end = last();
  for (std::int64_t step = first_; step <= end && mode_ == Mode::kFolded; ++step) fold(step, now);
}

void ContendedAfdExecutor::fold(std::int64_t number, Ps now) {
  Open& step = open(number);
  step.free = carry_.free;
  know_at_once(step);
  timing_.run(graph_, step.prices, step.start, carry_, step.starts, step.ends);
  if (std::ranges::max(step.ends) <= network_->next_look()) return expect_ends(number, now);
  network_->forget(*this);
  met(now);
}

// A member's end is certain when its last row has come through a port of its own, and at the latest
// when it is there. Where no row takes a port, nobody can come.
void ContendedAfdExecutor::expect_ends(std::int64_t number, Ps now) {
  Open& step = open(number);
  const auto node_ends = timing_.node_ends();
  std::vector<Ps> last_row(step.ends.size(), kNever);
  bool any = false;
  for (const Rows& rows : rows_) {
    const StepNode& node = graph_.nodes[rows.node];
    if (step.prices.bytes[at(node.price)] == 0) continue;
    any = true;
    Ps& last = last_row[at(node.member)];
    last = std::max(last == kNever ? 0 : last, node_ends[rows.node]);
  }
  step.certain.assign(step.ends.size(), now);
  for (std::size_t m = 0; m < step.ends.size(); ++m) {
    Ps& certain = step.certain[m];
    if (any) certain = last_row[m] == kNever ? step.ends[m] : std::min(last_row[m], step.ends[m]);
    if (number > first_) certain = std::max(certain, open(number - 1).certain[m]);
    certain = std::max(certain, now);
  }
  const std::vector<Ps> certain = step.certain;
  const bool waits = any || number > first_;
  for (std::size_t m = 0; m < certain.size(); ++m) {
    if (waits) {
      network_->call_at(certain[m], now, *this, token_of(number, kEnd | m));
    } else {
      tell(number, m, now);
    }
  }
}

// Somebody comes to a port, or looks at it: all that has begun by now goes on in the network.
void ContendedAfdExecutor::met(Ps now) {
  run_again(now, open_.empty() ? carry_.free : open_.front().free);
}

// All open steps, on streams that were free at these times.
void ContendedAfdExecutor::run_again(Ps now, std::vector<Ps> free) {
  mode_ = Mode::kCatchingUp;
  runs_.restart(first_, free);
  const std::int64_t end = last();
  for (std::int64_t number = first_; number <= end; ++number) {
    Open& step = open(number);
    step.at_once.clear();
    runs_.begin(step.prices, step.start, now);
  }
  mode_ = Mode::kRuns;
}

bool ContendedAfdExecutor::moves(std::int64_t number, std::int32_t node, Ps begin, Ps now) {
  if (mode_ == Mode::kFolding) return true;
  const StepPrices& prices = runs_.prices(number);
  const StepNode& moved = nodes_.nodes[at(node)];
  const Ps alone = begin + prices.of(nodes_, moved, 0);
  if (begins_unit(moved)) note_span(number, moved, begin, alone);
  const std::size_t port = port_at_[at(node)];
  if (port == kNoPort) return false;
  const std::int64_t bytes = prices.bytes[at(moved.price)];
  if (bytes == 0) return false;
  if (may_fold(number)) {
    mode_ = Mode::kFolding;
    return true;
  }
  if (number >= first_) open(number).moved = true;
  moving_[at(node)] = {begin, alone};
  const std::uint64_t token = token_of(number, static_cast<std::uint32_t>(node));
  if (begin < now)
    return network_->go_on(bundles_[port], bytes, begin, now, *this, token, Purpose::kM2n);
  network_->start_at(bundles_[port], bytes, begin, now, *this, token, Purpose::kM2n);
  return true;
}

void ContendedAfdExecutor::landed(TransferId, std::uint64_t token, Ps now) {
  const auto number = static_cast<std::int64_t>(token >> 32);
  const std::uint64_t what = token & 0xffffffffU;
  if ((what & kEnd) != 0) {
    const auto member = static_cast<std::size_t>(what & ~kEnd);
    // An end that was expected before somebody came is not certain any more.
    const bool holds = mode_ == Mode::kFolded && number >= first_ && number <= last();
    if (holds && open(number).certain[member] == now) tell(number, member, now);
    return;
  }
  const auto node = static_cast<std::int32_t>(what);
  const Ps end = std::max(now, moving_[at(node)].alone);
  note_span(number, nodes_.nodes[at(node)], moving_[at(node)].begin, end);
  runs_.ended(number, node, end, now);
  if (mode_ == Mode::kFolding) fold_all(now);
}

void ContendedAfdExecutor::note_span(std::int64_t step, const StepNode& node, Ps start,
                                     Ps end) const {
  if (NodeSpans* spans = pricer_.member(at(node.member)).spans())
    spans->add(step, nodes_, node, kAllRanks, start, end);
}

// All steps before this one have ended, since they had the same streams.
void ContendedAfdExecutor::member_ended(std::int64_t number, std::size_t member, Ps start, Ps end,
                                        Ps now) {
  // Told before somebody came: the step is gone where the others' ends were the last ones.
  if (number < first_ || open(number).told[member]) return;
  Open& step = open(number);
  if (step.at_once.empty()) {
    if (runs_.oldest() != number)
      throw std::logic_error("a step ends before the one that its streams ran last");
    std::ranges::copy(runs_.free(), carry_.free.begin());
    know_at_once(step);
  }
  step.starts[member] = start;
  step.ends[member] = end;
  tell(number, member, now);
}

// `carry_` is what the step before has left.
void ContendedAfdExecutor::know_at_once(Open& step) {
  const auto ends = at_once_.ends(graph_, step.prices, step.start, carry_, timing_);
  step.at_once.assign(ends.begin(), ends.end());
}

void ContendedAfdExecutor::tell(std::int64_t number, std::size_t member, Ps now) {
  if (number < first_ || open(number).told[member]) return;
  Open& step = open(number);
  const StepTimes times = step.step.times(pricer_, member, step.starts[member], step.ends[member],
                                          step.at_once[member]);
  step.told[member] = true;
  if (--step.left == 0) {
    step.step.count(pricer_, step.starts, step.ends);
    if (mode_ == Mode::kFolded) count_rows(step);
    open_.pop_front();
    ++first_;
  }
  sink_->timed(member, times, now);
}

void ContendedAfdExecutor::count_rows(const Open& step) {
  for (const Rows& rows : rows_) {
    const std::int64_t bytes = step.prices.bytes[at(graph_.nodes[rows.node].price)];
    if (bytes > 0) network_->count_alone(bundles_[rows.port], bytes, rows.repeat, Purpose::kM2n);
  }
}

}  // namespace llmsim
