// Chunks on their way through queues and phases.
#include <algorithm>
#include <bit>

#include "model/base/input_error.h"
#include "strict/collectives/collectives.h"

namespace astra_sim::strict {

using config::Algorithm;
using config::Collective;

namespace {

constexpr std::uint64_t kTagsPerGroup = 1'000'000;
constexpr std::int64_t kMostStreams = 1 << 30;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

template <class Item>
std::uint32_t take_free(std::vector<Item>& items, std::vector<std::uint32_t>& free) {
  if (free.empty()) {
    items.emplace_back();
    return static_cast<std::uint32_t>(items.size() - 1);
  }
  const std::uint32_t at = free.back();
  free.pop_back();
  return at;
}

}  // namespace

Collectives::Collectives(Clock& clock, Network& network, Plans& plans, NodeSink& sink,
                         const config::SystemConfig& system, const EndpointCosts& costs,
                         std::uint32_t npus, std::uint32_t queues)
    : clock_(clock),
      network_(network),
      plans_(plans),
      sink_(sink),
      costs_(costs),
      queues_per_dimension_(queues) {
  dimensions_ = 1;
  for (const auto& algorithms : system.algorithms) {
    dimensions_ = std::max(dimensions_, static_cast<std::uint32_t>(algorithms.size()));
  }
  max_phases_ = 2 * dimensions_;
  queues_per_npu_ = queues * dimensions_;
  streams_per_queue_ = static_cast<std::uint32_t>(
      std::min((system.active_chunks + queues - 1) / queues, kMostStreams));
  queues_.resize(static_cast<std::size_t>(npus) * queues_per_npu_);
  round_robin_.resize(static_cast<std::size_t>(npus) * dimensions_);
  issued_.resize(npus);
  begun_.resize(npus);
  live_.resize(plans.ring_count());
}

Collectives::Choice Collectives::choose(std::uint32_t npu, const Phase& phase) {
  RoundRobin& robin = round_robin_[npu * dimensions_ + phase.dimension];
  const std::uint32_t all = queues_per_dimension_;
  const std::uint32_t half = std::max(1u, all / 2);
  Choice choice{0, false, false};
  switch (phase.queue_rule) {
    case QueueRule::kAll:
      choice.queue = robin.next[0]++ % all;
      choice.backwards = all > 1 && choice.queue >= all / 2;
      break;
    case QueueRule::kFirstHalf:
      choice.queue = robin.next[1]++ % half;
      break;
    case QueueRule::kSecondHalf:
      choice.queue = all == 1 ? 0 : half + robin.next[2]++ % (all - half);
      choice.backwards = true;
      break;
  }
  choice.queue += phase.dimension * all;
  if (phase.algorithm.algorithm == Algorithm::kDoubleBinaryTree)
    choice.smaller_tree = robin.trees++ % 2 != 0;
  return choice;
}

void Collectives::start(const Request& request) {
  const std::uint32_t collective = take_free(running_, free_running_);
  std::uint32_t& issued = issued_[request.npu][request.group];
  std::uint64_t& begun = begun_[request.npu];
  // Streams of a group have numbers of the group. Those of all NPUs have the NPU's own, which count
  // streams of groups too, as upstream's do.
  const bool grouped = request.group != 0;
  running_[collective] = {request, request.chunks, begun};
  for (std::uint32_t i = 0; i < request.chunks; ++i) {
    const std::uint32_t at = take_free(streams_, free_streams_);
    choices_.resize(std::max(choices_.size(), static_cast<std::size_t>(at + 1) * max_phases_));
    const std::uint64_t own = begun++;
    const std::uint64_t tag = grouped ? request.group * kTagsPerGroup + issued++ : own;
    streams_[at] = {collective, 0, tag, request.chunk_bytes, kNone, at * max_phases_};
    for (std::size_t phase = 0; phase < request.plan->phases.size(); ++phase) {
      choices_[streams_[at].choices + phase] = choose(request.npu, request.plan->phases[phase]);
    }
    join_queue(at);
    serve_queue(request.npu, choices_[streams_[at].choices].queue);
  }
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> Collectives::waiting_streams() const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> out;
  for (const Running& one : running_) {
    if (one.left > 0 && one.request.group == 0) out.emplace_back(one.request.node, one.first_tag);
  }
  return out;
}

void Collectives::join_queue(std::uint32_t at) {
  Stream& stream = streams_[at];
  Queue& joined =
      queue(running_[stream.collective].request.npu, choices_[stream.choices + stream.phase].queue);
  stream.next = kNone;
  if (joined.head == kNone) {
    joined.head = at;
  } else {
    streams_[joined.tail].next = at;
  }
  joined.tail = at;
}

void Collectives::serve_queue(std::uint32_t npu, std::uint32_t at) {
  Queue& served = queue(npu, at);
  if (served.head == kNone || served.running >= streams_per_queue_) return;
  ++served.running;
  const std::uint32_t stream = served.head;
  served.head = streams_[stream].next;
  begin_phase(stream);
}

void Collectives::leave(std::uint32_t at) {
  const std::uint32_t collective = streams_[at].collective;
  const std::uint32_t npu = running_[collective].request.npu;
  const std::uint32_t old = choices_[streams_[at].choices + streams_[at].phase].queue;
  if (++streams_[at].phase == running_[collective].request.plan->phases.size()) {
    free_streams_.push_back(at);
    if (--running_[collective].left == 0) {
      free_running_.push_back(collective);
      sink_.node_done(running_[collective].request.node);
    }
    --queue(npu, old).running;
    serve_queue(npu, old);
    return;
  }
  join_queue(at);
  const std::uint32_t joined = choices_[streams_[at].choices + streams_[at].phase].queue;
  --queue(npu, old).running;
  serve_queue(npu, old);
  serve_queue(npu, joined);
}

Collectives::Instance Collectives::describe(std::uint32_t at) const {
  const Stream& stream = streams_[at];
  const Request& request = running_[stream.collective].request;
  const Phase& phase = request.plan->phases[stream.phase];
  const Choice& choice = choices_[stream.choices + stream.phase];
  Instance wanted{};
  wanted.key = stream.tag * 2 + phase.visit;
  wanted.operation = phase.operation;
  wanted.algorithm = phase.algorithm;
  wanted.smaller_tree = choice.smaller_tree;
  wanted.chunk_bytes = stream.bytes;
  wanted.ring = plans_.ring_of(request.npu, request.group, *request.plan, phase);
  const Ring& ring = plans_.ring(wanted.ring);
  wanted.size = static_cast<std::uint32_t>(ring.npus.size());
  if (stream.bytes > kMostBytes / wanted.size) {  // an all-gather multiplies what it is given
    throw model::OutOfRange("a chunk of a collective grows beyond 2^60 bytes");
  }
  wanted.levels = static_cast<std::uint32_t>(std::bit_width(wanted.size) - 1);
  wanted.message_bytes =
      phase.operation == Collective::kAllGather ? stream.bytes : stream.bytes / wanted.size;
  wanted.delay_ns = ring.sub_group ? 10 : costs_.delay_ns;
  wanted.reduction_ns = reduction_ns(wanted.message_bytes);
  const auto others = static_cast<std::int32_t>(wanted.size) - 1;
  wanted.parallel = 1;
  wanted.repeat = others;
  if (phase.algorithm.algorithm == Algorithm::kDirect) {
    wanted.parallel = others;
    if (phase.algorithm.window != 0 &&
        phase.algorithm.window < static_cast<std::uint32_t>(others)) {
      wanted.parallel = static_cast<std::int32_t>(phase.algorithm.window);
    }
    wanted.repeat = ring.sub_group ? others * wanted.parallel : wanted.parallel;
    wanted.pauses = phase.operation == Collective::kAllReduce;
  } else if (phase.algorithm.algorithm == Algorithm::kHalvingDoubling) {
    wanted.repeat = static_cast<std::int32_t>(wanted.levels) - 1;
  }
  wanted.first_node = request.node;
  return wanted;
}

void Collectives::begin_phase(std::uint32_t at) {
  const std::uint32_t member = join_instance(at);
  const Instance& instance = instances_[members_[member].instance];
  if (instance.algorithm.algorithm == Algorithm::kDoubleBinaryTree) {
    begin_tree(member);
  } else {
    begin_automaton(member);
  }
}

std::uint32_t Collectives::join_instance(std::uint32_t at) {
  const Stream& stream = streams_[at];
  const Request& request = running_[stream.collective].request;
  const Phase& phase = request.plan->phases[stream.phase];
  const std::uint32_t ring = plans_.ring_of(request.npu, request.group, *request.plan, phase);
  const std::uint64_t key = stream.tag * 2 + phase.visit;
  std::vector<Live>& live = live_[ring];
  const auto found =
      std::find_if(live.rbegin(), live.rend(), [&](const Live& one) { return one.key == key; });
  std::uint32_t index = 0;
  if (found == live.rend()) {
    index = make_instance(describe(at));
    live.push_back({key, index});
  } else {
    index = found->instance;
    check_same(instances_[index], describe(at), request.node);
  }
  const std::uint32_t position = plans_.position(request.npu, request.group, *request.plan, phase);
  const std::uint32_t member = instances_[index].first_member + position;
  members_[member] = {};
  members_[member].instance = index;
  members_[member].npu = request.npu;
  members_[member].stream = at;
  members_[member].position = position;
  members_[member].backwards = choices_[stream.choices + stream.phase].backwards;
  return member;
}

std::uint32_t Collectives::make_instance(const Instance& wanted) {
  std::uint32_t channels = wanted.size * 2;
  if (wanted.algorithm.algorithm == Algorithm::kDirect) channels = wanted.size * wanted.size;
  if (wanted.algorithm.algorithm == Algorithm::kHalvingDoubling)
    channels = wanted.size * wanted.levels * 2;
  if (wanted.algorithm.algorithm == Algorithm::kDoubleBinaryTree) channels = wanted.size * 3;
  const std::uint64_t shape = (static_cast<std::uint64_t>(wanted.size) << 8) |
                              static_cast<std::uint64_t>(wanted.algorithm.algorithm);
  const auto place =
      free_class_.try_emplace(shape, static_cast<std::uint32_t>(free_instances_.size()))
          .first->second;
  if (place == free_instances_.size()) free_instances_.emplace_back();
  std::vector<std::uint32_t>& free = free_instances_[place];
  Instance made = wanted;
  std::uint32_t index = 0;
  if (free.empty()) {
    index = static_cast<std::uint32_t>(instances_.size());
    instances_.emplace_back();
    made.first_member = static_cast<std::uint32_t>(members_.size());
    made.first_channel = static_cast<std::uint32_t>(channels_.size());
    members_.resize(members_.size() + wanted.size);
    channels_.resize(channels_.size() + channels);
  } else {
    index = free.back();
    free.pop_back();
    made.first_member = instances_[index].first_member;
    made.first_channel = instances_[index].first_channel;
  }
  for (std::uint32_t i = 0; i < wanted.size; ++i) {
    members_[made.first_member + i].instance = index;
    members_[made.first_member + i].npu =
        plans_.ring(wanted.ring).npus[i];  // a rendezvous may come before it joins
  }
  instances_[index] = made;
  return index;
}

void Collectives::finish_phase(std::uint32_t at) {
  const std::uint32_t index = members_[at].instance;
  const std::uint32_t stream = members_[at].stream;
  Instance& instance = instances_[index];
  const Collective operation = instance.operation;
  const std::uint32_t size = instance.size;
  if (++instance.finished == size) {
    std::vector<Live>& live = live_[instance.ring];
    const auto found = std::find_if(live.begin(), live.end(),
                                    [&](const Live& one) { return one.key == instance.key; });
    *found = live.back();
    live.pop_back();
    const std::uint64_t shape = (static_cast<std::uint64_t>(size) << 8) |
                                static_cast<std::uint64_t>(instance.algorithm.algorithm);
    free_instances_[free_class_.at(shape)].push_back(index);
  }
  if (operation == Collective::kReduceScatter) streams_[stream].bytes /= size;
  if (operation == Collective::kAllGather) streams_[stream].bytes *= size;
  leave(stream);
}

void Collectives::check_same(const Instance& made, const Instance& wanted,
                             std::uint32_t node) const {
  if (made.operation == wanted.operation && made.chunk_bytes == wanted.chunk_bytes &&
      made.algorithm.algorithm == wanted.algorithm.algorithm &&
      made.smaller_tree == wanted.smaller_tree) {
    return;
  }
  throw CollectiveMismatch{made.first_node,
                           node,
                           made.chunk_bytes,
                           wanted.chunk_bytes,
                           config::kCollectiveKeys[static_cast<std::size_t>(made.operation)],
                           config::kCollectiveKeys[static_cast<std::size_t>(wanted.operation)]};
}

}  // namespace astra_sim::strict
