// The messages of a Schedule: their sizes, what they wait for, the channels they queue in, and the
// tables of all that.
#include "model/collective/schedule.h"

#include <algorithm>
#include <string>

#include "model/base/arithmetic.h"
#include "model/base/errors.h"

namespace astra_sim::model {

namespace {
constexpr std::size_t kMaxMessages = std::size_t{1} << 27;
}  // namespace

std::shared_ptr<const Schedule> Schedule::make(const CollectivePlan& plan,
                                               std::span<const DeviceId> group) {
  check(plan, group.size());
  return ScheduleBuilder(plan, group).build();
}

std::vector<Message> Schedule::messages() const {
  std::vector<Message> all;
  for (std::uint32_t index = 0; index < num_messages(); ++index) all.push_back(message(index));
  return all;
}

void Schedule::set_messages(std::vector<Message> messages, std::uint32_t pieces) {
  messages_ = std::move(messages);
  number_ = static_cast<std::uint32_t>(messages_.size());
  pieces_ = pieces;
  piece_parts_ = denominator_ / pieces;
}

namespace {

// How far a message goes past the end of its lap.
std::int64_t beyond_lap(const Message& message) {
  if (message.first + message.units <= message.lap) return 0;  // most are in the first one
  return std::max<std::int64_t>(0, message.first % message.lap + message.units - message.lap);
}

}  // namespace

// What goes on at the beginning of a lap may be cut in two odd places, and have a byte more than
// its share.
Bytes Schedule::timing_bytes(const Message& message, Bytes bytes) const {
  const Bytes size = share_of(bytes, message.units, denominator_, true);
  if (size > kMaxBytes) throw OutOfRange("a message of a collective is larger than 2^60 bytes");
  return beyond_lap(message) == 0 ? size : std::max(size, exact_bytes(message, bytes));
}

// Part i of the vector are its bytes from floor(i * bytes / denominator) on: no message carries
// more than its timing says.
Bytes Schedule::exact_bytes(const Message& item, Bytes bytes) const {
  const std::int64_t over = beyond_lap(item);
  const auto before = [&](std::int64_t part) { return share_of(bytes, part, denominator_, false); };
  const Bytes straight = before(item.first + item.units - over) - before(item.first);
  if (over == 0) return straight;
  const std::int64_t begin = item.first / item.lap * item.lap;
  return straight + before(begin + over) - before(begin);
}

Bytes Schedule::most_sent(Bytes bytes) const {
  std::int64_t most = 0;
  for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
    std::int64_t units = 0;
    for (const std::uint32_t index : of_rank(rank)) units += message(index).units;
    most = std::max(most, units);
  }
  return share_of(bytes, most, denominator_, true);
}

ScheduleBuilder::ScheduleBuilder(const CollectivePlan& plan, std::span<const DeviceId> group)
    : plan_(plan),
      group_(group),
      num_ranks_(static_cast<std::uint32_t>(group.size())),
      dims_(plan.shape.dims),
      algorithms_(plan.shape.algorithms),
      windows_(plan.shape.windows),
      out_(new Schedule),
      ready_(num_ranks_),
      incoming_(num_ranks_) {
  if (dims_.empty()) dims_.push_back(num_ranks_);
  if (algorithms_.empty()) algorithms_.assign(dims_.size(), plan.algorithm);
  if (windows_.empty()) windows_.assign(dims_.size(), 0);
  std::uint32_t stride = 1;
  for (const std::uint32_t size : dims_) {
    stride_.push_back(stride);
    stride *= size;
  }
}

std::shared_ptr<const Schedule> ScheduleBuilder::build() {
  if (plan_.shape.pair_units != nullptr) {
    all_pairs();
  } else {
    out_->denominator_ = std::int64_t{2} * num_ranks_ * plan_.shape.pieces;
    if (num_ranks_ > 1) piece();
  }
  link_channels();
  check_number(messages_.size() * plan_.shape.pieces);
  if (plan_.shape.pieces > 1) repeat(plan_.shape.pieces);
  out_->set_messages(std::move(messages_), plan_.shape.pieces);
  finish();
  return out_;
}

// `own`: waits for the phases before even though it waits for messages of this one.
std::uint32_t ScheduleBuilder::add(const Line& line, std::uint32_t from, std::uint32_t to,
                                   std::int64_t first, std::int64_t units,
                                   std::span<const std::uint32_t> after, bool own, LinkId link) {
  const auto id = static_cast<std::uint32_t>(messages_.size());
  check_number(id + std::size_t{1});
  const auto endpoint = [&](std::uint32_t at) { return at < line.size() ? line.ranks[at] : at; };
  Message message{endpoint(from), endpoint(to), phase_, kNone, link, first, units, line.lap};
  for (const std::uint32_t earlier : after) edges_.emplace_back(earlier, id);
  if (message.from < num_ranks_ && (after.empty() || own) && !ready_[message.from].empty()) {
    edges_.emplace_back(gate(message.from), id);
  }
  if (message.to >= incoming_.size()) incoming_.resize(message.to + 1);
  incoming_[message.to].push_back(id);
  messages_.push_back(message);
  return id;
}

void ScheduleBuilder::check_number(std::size_t messages) const {
  if (messages <= kMaxMessages) return;
  throw InvalidTopology("a " + std::string(name_of(plan_.algorithm)) + " " + name_of(plan_.kind) +
                        " has more than 2^27 messages");
}

// The next message of every channel, in the order of their numbers. Where the vector passes in
// pieces the last one of a channel names the first in its place.
void ScheduleBuilder::link_channels() {
  std::vector<std::uint32_t> begin(1, 0);
  for (const Message& message : messages_) {
    if (message.from + 2 > begin.size()) begin.resize(message.from + 2, 0);
    ++begin[message.from + 1];
  }
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  struct Key {
    std::uint64_t channel;
    std::uint32_t id;
  };
  const bool in_pieces = plan_.shape.pieces > 1;
  std::vector<Key> keys(messages_.size());
  std::vector<std::uint32_t> fill(begin.begin(), begin.end() - 1);
  for (std::uint32_t id = 0; id < messages_.size(); ++id) {
    const Message& message = messages_[id];
    keys[fill[message.from]++] = {std::uint64_t{message.to} << 32 | (in_pieces ? message.phase : 0),
                                  id};
  }
  for (std::size_t from = 0; from + 1 < begin.size(); ++from) {
    const auto first = keys.begin() + begin[from], last = keys.begin() + begin[from + 1];
    std::sort(first, last, [](const Key& a, const Key& b) {
      return a.channel != b.channel ? a.channel < b.channel : a.id < b.id;
    });
    for (auto head = first, at = first; at != last; ++at) {
      if (at->channel != head->channel) head = at;
      const bool ends = at + 1 == last || (at + 1)->channel != at->channel;
      if (!ends || in_pieces) messages_[at->id].next = ends ? head->id : (at + 1)->id;
    }
  }
}

// What waits for what, of all pieces like in the first one.
void ScheduleBuilder::repeat(std::uint32_t pieces) {
  const std::size_t edges = edges_.size();
  const std::uint32_t gates = num_gates_;
  edges_.reserve(edges * pieces);
  for (std::uint32_t piece = 1; piece < pieces; ++piece) {
    const auto shift = static_cast<std::uint32_t>(messages_.size() * piece);
    const auto moved = [&](std::uint32_t item) {
      return item + (item >= kFirstGate ? gates * piece : shift);
    };
    for (std::size_t i = 0; i < edges; ++i) {
      const auto [earlier, later] = edges_[i];
      edges_.emplace_back(moved(earlier), moved(later));
    }
  }
  num_gates_ = gates * pieces;
}

// What opens when all has arrived that the rank received in the phases before; needs something
// there.
std::uint32_t ScheduleBuilder::gate(std::uint32_t rank) {
  Ids& before = ready_[rank];
  if (before.size() > 1) {
    const std::uint32_t id = kFirstGate + num_gates_++;
    for (const std::uint32_t earlier : before) edges_.emplace_back(earlier, id);
    before.assign(1, id);
  }
  return before[0];
}

void ScheduleBuilder::finish() {
  const std::uint32_t number = out_->num_messages();
  for (auto& [earlier, later] : edges_) {
    if (earlier >= kFirstGate) earlier += number - kFirstGate;
    if (later >= kFirstGate) later += number - kFirstGate;
  }
  out_->waits_.assign(number + num_gates_, 0);
  out_->connect(num_ranks_, edges_);
}

// The tables, once all messages and the number of items are known.
void Schedule::connect(std::uint32_t num_ranks,
                       std::span<const std::pair<std::uint32_t, std::uint32_t>> edges) {
  const std::size_t items = waits_.size();
  after_begin_.assign(items + 1, 0);
  for (const auto& [earlier, later] : edges) {
    ++after_begin_[earlier + 1];
    ++waits_[later];
  }
  for (std::size_t i = 0; i < items; ++i) after_begin_[i + 1] += after_begin_[i];
  after_.resize(edges.size());
  std::vector<std::uint32_t> fill(after_begin_.begin(), after_begin_.end() - 1);
  for (const auto& [earlier, later] : edges) after_[fill[earlier]++] = later;
  received_.assign(num_ranks, 0);
  sent_begin_.assign(num_ranks + 1, 0);
  for (std::uint32_t i = 0; i < num_messages(); ++i) {
    const Message message = this->message(i);
    if (message.from < num_ranks) {
      ++sent_begin_[message.from + 1];
      ++waits_[i];  // its rank's start
    }
    if (message.to < num_ranks) ++received_[message.to];
    if (message.next != kNone) ++waits_[message.next];
  }
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) sent_begin_[rank + 1] += sent_begin_[rank];
  sent_.resize(sent_begin_[num_ranks]);
  fill.assign(sent_begin_.begin(), sent_begin_.end() - 1);
  for (std::uint32_t i = 0; i < num_messages(); ++i) {
    const std::uint32_t from = messages_[i % number_].from;
    if (from < num_ranks) sent_[fill[from]++] = i;
  }
}

}  // namespace astra_sim::model
