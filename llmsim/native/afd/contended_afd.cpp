#include "afd/contended_afd.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>

namespace llmsim {

namespace {

constexpr std::size_t kMostCuts = 64;  // each as large as its graph
// What the executor hears: that ends are certain, that an expected row begins, or else that a row
// has landed. Below these bits are a row's port and place; above them the step's lowest bits.
constexpr int kRowBits = 40, kStepBits = 22;
constexpr std::uint64_t kEnds = std::uint64_t{2} << kRowBits;
constexpr std::uint64_t kRowBegins = std::uint64_t{1} << kRowBits;
constexpr std::uint64_t kSteps = std::uint64_t{1} << kStepBits;

constexpr std::uint64_t bits(std::uint64_t value, int count) {
  return value & ((std::uint64_t{1} << count) - 1);
}

}  // namespace

ContendedAfdExecutor::ContendedAfdExecutor(AfdPricer pricer, std::unique_ptr<WideGraphs> graphs,
                                           std::vector<SharedPort> ports, bool exact)
    : pricer_(std::move(pricer)),
      graphs_(std::move(graphs)),
      ports_(std::move(ports)),
      is_open_(ports_.size(), true),
      exact_(exact),
      timing_(*graphs_),
      at_once_(*graphs_, pricer_.config().splits_waiting),
      carry_(graphs_->num_streams(), 0),
      runs_(*this) {
  const StepGraph& graph = graphs_->folded().graph;
  port_at_.assign(pricer_.num_members() * at(graph.stages) * 2, kNoPort);
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const SharedPort& port = ports_[i];
    if (port.member < 0 || at(port.member) >= pricer_.num_members() || port.stage < 0 ||
        port.stage >= graph.stages || port.flows.empty())
      throw std::invalid_argument("a port of no unit, or without a flow");
    if (port.out) sends_share_[pricer_.attends(at(port.member))] = true;
    std::size_t& there = port_at_[at((port.member * graph.stages + port.stage) * 2 + port.out)];
    if (there == kNoPort) there = i;
  }
  for (const Block& block : graph.blocks)
    for (std::int32_t i = block.first; i < block.last; ++i)
      if (is_row(graph.nodes[at(i)])) folded_rows_.push_back({i, block.repeat});
}

std::size_t ContendedAfdExecutor::port_of(const StepNode& node, std::size_t member) const {
  if (!is_row(node)) return kNoPort;
  const auto stages = static_cast<std::size_t>(graphs_->folded().graph.stages);
  const std::size_t stage = at(node.stream / kNumDeviceStreams) % stages;
  return port_at_[(member * stages + stage) * 2 + (node.role == NodeRole::kM2nSend)];
}

std::vector<std::size_t> ContendedAfdExecutor::open_ports() const {
  std::vector<std::size_t> found;
  for (std::size_t port = 0; port < is_open_.size(); ++port)
    if (is_open_[port]) found.push_back(port);
  return found;
}

std::vector<std::size_t> ContendedAfdExecutor::ports_with_rows() const {
  std::vector<std::size_t> found;
  for (std::size_t port = 0; port < is_open_.size(); ++port) {
    const auto has_rows = [port](const Open& step) {
      return !step.rows.empty() && !step.rows[port].empty();
    };
    if (is_open_[port] || std::ranges::any_of(open_, has_rows)) found.push_back(port);
  }
  return found;
}

bool ContendedAfdExecutor::all_open() const {
  return std::ranges::all_of(is_open_, std::identity{});
}

bool ContendedAfdExecutor::none_open() const {
  return std::ranges::none_of(is_open_, std::identity{});
}

void ContendedAfdExecutor::start(SharedNetwork* network, Ps /*now*/) {
  if (network == nullptr)
    throw std::invalid_argument("rows that meet other transfers need the network");
  network_ = network;
  port_on_.assign(network->num_links(), kNoPort);
  std::vector<std::int64_t> rates;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    bundles_.push_back(network->add_bundle(ports_[i].flows));
    rates.push_back(pricer_.bytes_per_s(at(ports_[i].member)));
    for (const PartialFlow& flow : ports_[i].flows)
      for (const NetworkLinkId link : flow.links) port_on_[link] = i;
  }
  folds_ = !exact_ && network->known_alone(bundles_, rates);
}

void ContendedAfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                                 StepSink& sink) {
  sink_ = &sink;
  pricer_.begin(batches);
  auto prices = std::make_shared<AfdPrices>();
  pricer_.fill(graphs_->kinds(), graphs_->keys(), graphs_->segments(), *prices);
  const std::vector<Ps> unknown(batches.size(), kNever);
  const std::vector<bool> nobody(batches.size(), false);
  open_.push_back({.step = AfdStep(pricer_),
                   .start = start,
                   .prices = std::move(prices),
                   .starts = unknown,
                   .ends = unknown,
                   .at_once = {},
                   .told = nobody,
                   .left = batches.size(),
                   .free = {},
                   .certain = unknown,
                   .calls = {},
                   .rows = {}});
  if (mode_ == Mode::kFolded) return fold(last(), start.now);
  if (may_close(last())) return close_ports(start.now);
  if (!runs_.started()) choose_classes(first_, carry_);
  runs_now_ = true;
  runs_.begin(open_.back().prices, start, start.now);
  finish(start.now);
}

// What came up while nodes ran.
void ContendedAfdExecutor::finish(Ps now) {
  runs_now_ = false;
  if (!met_.empty()) act_on_met(now);
  if (mode_ == Mode::kClosing) close_ports(now);
}

// When the streams were free before the oldest open step, or are after all steps.
std::vector<Ps> ContendedAfdExecutor::free_before() const {
  if (!open_.empty() && !open_.front().free.empty()) return open_.front().free;
  std::vector<Ps> free = carry_;
  if (mode_ != Mode::kFolded && runs_.started()) runs_.copy_free(free);
  return free;
}

// The step is the first one that has not come to its end, and none of its rows, or of those behind
// it, has begun in the network.
bool ContendedAfdExecutor::may_close(std::int64_t step) const {
  if (!folds_ || mode_ != Mode::kRuns || records()) return false;
  if (step != oldest_left()) return false;
  const auto left = std::ranges::subrange(open_.begin() + (step - first_), open_.end());
  if (std::ranges::any_of(left, [](const Open& one) { return one.moved; })) return false;
  const auto silent = [&](std::size_t port) { return network_->silent({&bundles_[port], 1}); };
  if (none_open()) return true;
  const std::vector<std::size_t> open = open_ports();
  return may_part() ? std::ranges::any_of(open, silent) : std::ranges::all_of(open, silent);
}

// Steps that have come to their ends keep their rows, for these run again when somebody comes.
void ContendedAfdExecutor::close_ports(Ps now) {
  const std::int64_t begin = oldest_left(), end = last();
  std::vector<BundleId> silent;
  for (const std::size_t port : open_ports()) {
    if (!network_->silent({&bundles_[port], 1})) continue;
    silent.push_back(bundles_[port]);
    is_open_[port] = false;
  }
  for (std::int64_t step = begin; step <= end; ++step) open(step).rows.clear();
  if (!network_->watch(silent, *this, now)) return open_all(now);
  if (!none_open()) return run_again(now);
  if (runs_.started()) runs_.copy_free(carry_);
  mode_ = Mode::kFolded;
  for (std::int64_t step = begin; step <= end && mode_ == Mode::kFolded; ++step) fold(step, now);
}

// Between two rows of a step.
void ContendedAfdExecutor::close_if_silent(std::size_t port, Ps now) {
  if (!is_open_[port] || mode_ != Mode::kRuns || !may_rest()) return;
  const std::span<const BundleId> bundle{&bundles_[port], 1};
  if (network_->silent(bundle) && network_->watch(bundle, *this, now)) is_open_[port] = false;
}

void ContendedAfdExecutor::open_all(Ps now) {
  for (std::size_t port = 0; port < is_open_.size(); ++port)
    if (!is_open_[port]) network_->forget(bundles_[port]);
  is_open_.assign(is_open_.size(), true);
  run_again(now);
}

// Somebody comes to a port, or looks at it: all that has begun there by now goes on in the network.
void ContendedAfdExecutor::met(std::span<const NetworkLinkId> links, Ps now) {
  for (const NetworkLinkId link : links) {
    const std::size_t port = port_on_[link];
    if (port != kNoPort && !is_open_[port] && !std::ranges::count(met_, port)) met_.push_back(port);
  }
  if (!runs_now_ && !met_.empty()) act_on_met(now);
}

void ContendedAfdExecutor::act_on_met(Ps now) {
  const std::vector<std::size_t> met = std::exchange(met_, {});
  if (!may_part()) return open_all(now);
  for (const std::size_t port : met) {
    is_open_[port] = true;
    network_->forget(bundles_[port]);
  }
  run_again(now);
}

void ContendedAfdExecutor::run_again(Ps now) {
  const std::vector<Ps> free = free_before();
  mode_ = Mode::kCatchingUp;
  choose_classes(first_, free);
  runs_now_ = true;
  const std::int64_t end = last();
  for (std::int64_t number = first_; number <= end; ++number) {
    Open& step = open(number);
    step.at_once.clear();
    step.free.clear();
    step.calls.clear();
    step.certain.assign(step.certain.size(), kNever);
    runs_.begin(step.prices, step.start, now);
  }
  mode_ = Mode::kRuns;
  finish(now);
}

void ContendedAfdExecutor::choose_classes(std::int64_t number, std::span<const Ps> free) {
  const std::vector<std::size_t> ports = ports_with_rows();
  if (cuts_.size() >= kMostCuts) cuts_.clear();
  std::unique_ptr<PortCut>& cut = cuts_[{ports, all_open()}];
  if (cut == nullptr) cut = cut_for(ports);
  cut_ = cut.get();
  ++restarts_;
  runs_.restart(number, *cut_, graphs_->kinds(), free);
}

// Members with an open port are classes of their own; few numbers of them need few graphs.
std::vector<bool> ContendedAfdExecutor::members_apart(std::span<const std::size_t> ports) const {
  const MemberKinds& kinds = graphs_->kinds();
  std::vector<bool> apart(kinds.num_members(), all_open());
  for (const std::size_t port : ports) apart[at(ports_[port].member)] = true;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& members = kinds.members(kind);
    const auto is_apart = [&](std::int32_t member) { return static_cast<bool>(apart[at(member)]); };
    const auto so_far = static_cast<std::size_t>(std::ranges::count_if(members, is_apart));
    if (so_far == 0) continue;
    std::size_t more = std::bit_ceil(so_far) - so_far;
    for (const std::int32_t member : members) {
      if (more == 0) break;
      if (is_apart(member)) continue;
      apart[at(member)] = true;
      --more;
    }
  }
  return apart;
}

std::unique_ptr<PortCut> ContendedAfdExecutor::cut_for(std::span<const std::size_t> ports) {
  const MemberKinds& kinds = graphs_->kinds();
  std::vector<MemberClass> classes = classes_of(kinds, members_apart(ports));
  const WideGraph& graph = graphs_->apart(classes);
  const auto port_of_row = [this](const StepNode& row, std::size_t member) {
    return port_of(row, member);
  };
  return std::make_unique<PortCut>(graph, std::move(classes), kinds, ports, ports_.size(),
                                   port_of_row, records());
}

Ps ContendedAfdExecutor::end_of(std::int64_t number, std::int32_t node, Ps begin, Ps alone,
                                Ps now) {
  if (mode_ == Mode::kClosing) return kNever;
  const StepNode& moved = runs_.graph().graph.nodes[at(node)];
  if (begins_unit(moved)) note_span(number, moved, begin, alone);
  const auto [port, place] = cut_->position[at(node)];
  if (port == kNoPort) return alone;
  const std::int64_t bytes = runs_.bytes(number, node);
  if (bytes == 0) return alone;
  if (may_close(number)) {
    mode_ = Mode::kClosing;
    return kNever;
  }
  return move(number, port, place, begin, alone, bytes, now);
}

// A row on an open port. Where others are closed, what it waits for may still be delayed until it
// begins, so that it begins in the network only then.
Ps ContendedAfdExecutor::move(std::int64_t number, std::size_t port, std::size_t place, Ps begin,
                              Ps alone, std::int64_t bytes, Ps now) {
  Open& step = open(number);
  step.rows.resize(ports_.size());
  step.rows[port].resize(cut_->row_nodes[port].size());
  Row& row = step.rows[port][place];
  row.restarts = restarts_;
  if (row.state == Row::State::kLanded) return row.end;
  if (row.state == Row::State::kMoving) return kNever;
  row.begin = begin;
  row.alone = row.end = alone;
  row.bytes = bytes;
  if (!is_open_[port]) {
    row.state = Row::State::kUnknown;
    return alone;
  }
  const std::uint64_t name = port << kPlaceBits | place;
  if (begin > now && (may_rest() || !all_open())) {
    row.state = Row::State::kExpected;
    network_->call_at(begin, now, *this, token_of(number, kRowBegins | name));
    return kNever;
  }
  step.moved = true;
  row.state = Row::State::kMoving;
  const std::uint64_t token = token_of(number, name);
  if (begin >= now) {
    network_->start_at(bundles_[port], bytes, begin, now, *this, token, Purpose::kM2n);
    return kNever;
  }
  if (network_->go_on(bundles_[port], bytes, begin, now, *this, token, Purpose::kM2n))
    return kNever;
  row.state = Row::State::kLanded;
  return alone;
}

std::int32_t ContendedAfdExecutor::last_moved(std::int64_t number) const {
  std::int32_t last = -1;
  const Open& step = open(number);
  for (std::size_t port = 0; port < step.rows.size(); ++port)
    for (std::size_t place = step.rows[port].size(); place-- > 0;) {
      if (step.rows[port][place].state == Row::State::kUnknown) continue;
      last = std::max(last, cut_->row_nodes[port][place]);
      break;
    }
  return last;
}

void ContendedAfdExecutor::landed(TransferId, std::uint64_t token, Ps now) {
  // Few steps are open at once; one that is not any more becomes one that is far ahead.
  const std::uint64_t ahead = (token >> (kRowBits + 2)) - static_cast<std::uint64_t>(first_);
  const std::int64_t number = first_ + static_cast<std::int64_t>(bits(ahead, kStepBits));
  if ((token & kEnds) != 0) return tell_certain(number, now);
  const std::uint64_t row = bits(token, kRowBits);
  if ((token & kRowBegins) != 0) return row_expected(number, row, now);
  row_landed(number, row, now);
}

std::uint64_t ContendedAfdExecutor::token_of(std::int64_t step, std::uint64_t what) {
  return static_cast<std::uint64_t>(step) % kSteps << (kRowBits + 2) | what;
}

// It may have been expected at another time before somebody came to a port.
void ContendedAfdExecutor::row_expected(std::int64_t number, std::uint64_t name, Ps now) {
  const std::size_t port = name >> kPlaceBits, place = bits(name, kPlaceBits);
  if (!is_open(number) || mode_ != Mode::kRuns || open(number).rows.empty()) return;
  if (place >= open(number).rows[port].size()) return;
  Row& row = open(number).rows[port][place];
  if (row.state != Row::State::kExpected || row.begin != now || row.restarts != restarts_) return;
  if (may_close(number)) return close_ports(now);
  if (!is_open_[port]) {
    row.state = Row::State::kUnknown;
    return end_row(number, cut_->row_nodes[port][place], row.alone, now);
  }
  open(number).moved = true;
  row.state = Row::State::kMoving;
  network_->start_at(bundles_[port], row.bytes, now, now, *this, token_of(number, name),
                     Purpose::kM2n);
}

void ContendedAfdExecutor::row_landed(std::int64_t number, std::uint64_t name, Ps now) {
  const std::size_t port = name >> kPlaceBits, place = bits(name, kPlaceBits);
  if (!is_open(number)) throw std::logic_error("a row lands of a step that has ended");
  Row& row = open(number).rows[port][place];
  const std::int32_t node = cut_->row_nodes[port][place];
  row.state = Row::State::kLanded;
  row.end = std::max(now, row.alone);
  note_span(number, runs_.graph().graph.nodes[at(node)], row.begin, row.end);
  if (row.restarts != restarts_) return;  // the steps that run will come to it
  close_if_silent(port, now);
  end_row(number, node, row.end, now);
}

void ContendedAfdExecutor::end_row(std::int64_t number, std::int32_t node, Ps end, Ps now) {
  runs_now_ = true;
  if (may_rest() && none_open()) {
    runs_.run_out(number, node, end, now);
  } else {
    runs_.ended(number, node, end, now);
  }
  finish(now);
}

void ContendedAfdExecutor::note_span(std::int64_t step, const StepNode& node, Ps start,
                                     Ps end) const {
  if (!records()) return;
  pricer_.member(at(node.member))
      .spans()
      ->add(step, runs_.graph().graph, node, kAllRanks, start, end);
}

void ContendedAfdExecutor::fold(std::int64_t number, Ps now) {
  Open& step = open(number);
  step.free = carry_;
  know_at_once(step, carry_);
  timing_.run(*step.prices, step.start, carry_, step.starts, step.ends);
  if (std::ranges::max(step.ends) <= network_->next_look()) return expect_ends(number, now);
  open_all(now);
}

// A member's end is certain when its last row is there and the other side has sent its last one,
// and where its port is nobody else's, when it is there. Where no row takes a port, nobody can
// come.
void ContendedAfdExecutor::expect_ends(std::int64_t number, Ps now) {
  Open& step = open(number);
  const WideGraph& graph = graphs_->folded();
  std::vector<Ps> certain = step.ends;
  Ps sent[2] = {kNever, kNever};  // by FFN and attention
  bool any = false;
  for (const RowNode& row : folded_rows_) {
    const StepNode& node = graph.graph.nodes[at(row.node)];
    const std::size_t kind = graph.kinds[at(node.member)];
    const auto& of_kind = graphs_->kinds().members(kind);
    const std::int64_t* bytes =
        &step.prices->kinds[kind].bytes[at(graph.nodes[at(row.node)].key) * of_kind.size()];
    const auto ends = timing_.ends_of(row.node);
    for (std::size_t i = 0; i < of_kind.size(); ++i) {
      const std::size_t m = at(of_kind[i]);
      if (bytes[i] == 0 || port_of(node, m) == kNoPort) continue;
      any = true;
      Ps& last = sent[pricer_.attends(m)];
      // Rows follow each other: the last one counts.
      if (node.role == NodeRole::kM2nSend) last = std::max(last, ends[i]);
      if (node.role == NodeRole::kM2nReceive) certain[m] = ends[i];
    }
  }
  for (std::size_t m = 0; m < certain.size(); ++m) {
    if (!any && number == first_) {
      tell(number, m, now);
    } else {
      expect_end(number, m, any ? std::max(certain[m], sent[!pricer_.attends(m)]) : now, now);
    }
  }
}

// The executor hears when the end is certain, once for all ends that are so at a time.
void ContendedAfdExecutor::expect_end(std::int64_t number, std::size_t member, Ps certain, Ps now) {
  Open& step = open(number);
  certain = std::min(certain, step.ends[member]);
  if (number > first_) certain = std::max(certain, open(number - 1).certain[member]);
  certain = std::max(certain, now);
  step.certain[member] = certain;
  if (std::ranges::count(step.calls, certain)) return;
  step.calls.push_back(certain);
  network_->call_at(certain, now, *this, token_of(number, kEnds));
}

// An end that was expected before somebody came is not certain any more.
void ContendedAfdExecutor::tell_certain(std::int64_t number, Ps now) {
  const std::size_t members = pricer_.num_members();
  for (std::size_t m = 0; m < members; ++m)
    if (is_open(number) && open(number).certain[m] == now) tell(number, m, now);
}

// All steps before this one have ended, since they had the same streams.
void ContendedAfdExecutor::member_ended(std::int64_t number, std::size_t member, Ps start, Ps end,
                                        Ps now) {
  // Told before somebody came: the step is gone where the others' ends were the last ones.
  if (number < first_) return;
  Open& step = open(number);
  if (step.at_once.empty()) {
    if (runs_.oldest() != number)
      throw std::logic_error("a step ends before the one that its streams ran last");
    step.free = carry_;
    runs_.copy_free(step.free);
    know_at_once(step, step.free);
  }
  if (step.told[member]) return;
  step.starts[member] = start;
  step.ends[member] = end;
  const bool waits = number > first_ && !open(number - 1).told[member];
  const Ps certain = certain_end(number, member);
  if (certain <= now && !waits) return tell(number, member, now);
  expect_end(number, member, certain, now);
}

// With all ports open what has ended is certain; else as in a step that is folded.
Ps ContendedAfdExecutor::certain_end(std::int64_t number, std::size_t member) const {
  if (all_open()) return kNever;
  Ps certain = kEndOfTime;
  const auto each_last = [&](std::size_t m, NodeRole role, const auto& act) {
    for (const std::int32_t node : cut_->last_rows[at(cut_->class_of[m])]) {
      const StepNode& row = runs_.graph().graph.nodes[at(node)];
      const std::size_t port = port_of(row, m);
      if (port != kNoPort && row.role == role) act(runs_.ends_of(number, node)[cut_->in_class[m]]);
    }
  };
  each_last(member, NodeRole::kM2nReceive, [&](Ps end) { certain = end; });
  const bool attends = pricer_.attends(member);
  for (std::size_t m = 0; sends_share_[!attends] && m < pricer_.num_members(); ++m)
    if (pricer_.attends(m) != attends)
      each_last(m, NodeRole::kM2nSend, [&](Ps end) { certain = std::max(certain, end); });
  return certain;
}

// `free` is what the step before has left.
void ContendedAfdExecutor::know_at_once(Open& step, std::span<const Ps> free) {
  const auto ends = at_once_.ends(*step.prices, step.start, free, timing_);
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
    count_rows(step);
    open_.pop_front();
    ++first_;
  }
  sink_->timed(member, times, now);
}

// What the network has not counted.
void ContendedAfdExecutor::count_rows(const Open& step) {
  const WideGraph& graph = graphs_->folded();
  for (const RowNode& row : folded_rows_) {
    const StepNode& node = graph.graph.nodes[at(row.node)];
    const std::size_t kind = graph.kinds[at(node.member)];
    const auto& of_kind = graphs_->kinds().members(kind);
    for (std::size_t i = 0; i < of_kind.size(); ++i) {
      const std::size_t port = port_of(node, at(of_kind[i]));
      if (port == kNoPort) continue;
      if (!step.rows.empty() && !step.rows[port].empty()) continue;  // its rows are counted below
      const std::int64_t bytes =
          step.prices->kinds[kind].bytes[at(graph.nodes[at(row.node)].key) * of_kind.size() + i];
      if (bytes > 0) network_->count_alone(bundles_[port], bytes, row.repeat, Purpose::kM2n);
    }
  }
  for (std::size_t port = 0; port < step.rows.size(); ++port) count_rows_alone(step, port);
}

// Rows of a lane in layers that are alike have equal bytes.
void ContendedAfdExecutor::count_rows_alone(const Open& step, std::size_t port) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;  // of so many bytes
  for (std::size_t place = 0; place < step.rows[port].size(); ++place) {
    if (step.rows[port][place].state != Row::State::kUnknown) continue;
    const std::int32_t node = cut_->row_nodes[port][place];
    const std::int64_t bytes = cut_->bytes(*step.prices, graphs_->kinds(), node);
    if (bytes == 0) continue;
    const auto known = std::ranges::find(times, bytes, &decltype(times)::value_type::first);
    if (known != times.end()) {
      ++known->second;
    } else {
      times.emplace_back(bytes, 1);
    }
  }
  for (const auto& [bytes, count] : times)
    network_->count_alone(bundles_[port], bytes, count, Purpose::kM2n);
}

}  // namespace llmsim
