// Plans of several dimensions and pieces: which lines do what, in which order, and the tables of a Schedule.
#include "model/schedule.h"

#include <algorithm>
#include <string>

#include "model/arithmetic.h"
#include "model/errors.h"

namespace astra_sim::model {

namespace {
constexpr std::size_t kMaxMessages = std::size_t{1} << 27;
using Wide = unsigned __int128;
}  // namespace

std::shared_ptr<const Schedule> Schedule::make(const CollectivePlan& plan, std::span<const DeviceId> group) {
    check(plan, group.size());
    return ScheduleBuilder(plan, group).build();
}

Bytes Schedule::timing_bytes(std::uint32_t message, Bytes bytes) const {
    const Wide scaled = static_cast<Wide>(bytes) * static_cast<Wide>(messages_[message].units);
    const Wide size = (scaled + static_cast<Wide>(denominator_) - 1) / static_cast<Wide>(denominator_);
    if (size > static_cast<Wide>(kMaxBytes)) throw OutOfRange("a message of a collective is larger than 2^60 bytes");
    return static_cast<Bytes>(size);
}

// Part i of the vector are its bytes from floor(i * bytes / denominator) on: no message carries more than its timing
// says.
Bytes Schedule::exact_bytes(std::uint32_t message, Bytes bytes) const {
    const Message& item = messages_[message];
    const std::int64_t begin = item.first / item.lap * item.lap;
    const std::int64_t over = std::max<std::int64_t>(0, item.first + item.units - begin - item.lap);
    const auto before = [&](std::int64_t part) {
        return static_cast<Bytes>(static_cast<Wide>(bytes) * static_cast<Wide>(part) / static_cast<Wide>(denominator_));
    };
    return before(item.first + item.units - over) - before(item.first) + before(begin + over) - before(begin);
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
    out_->in_pieces_ = plan_.shape.pieces > 1;
    if (plan_.shape.pair_units != nullptr) {
        all_pairs();
    } else {
        out_->denominator_ = std::int64_t{2} * num_ranks_ * plan_.shape.pieces;
        for (std::uint32_t index = 0; index < plan_.shape.pieces && num_ranks_ > 1; ++index) piece(index);
    }
    finish();
    return out_;
}

// `own`: waits for the phases before even though it waits for messages of this one.
std::uint32_t ScheduleBuilder::add(const Line& line, std::uint32_t from, std::uint32_t to, std::int64_t first,
                                   std::int64_t units, std::span<const std::uint32_t> after, bool own, LinkId link) {
    const auto id = static_cast<std::uint32_t>(out_->messages_.size());
    if (id >= kMaxMessages) {
        throw InvalidTopology("a " + std::string(name_of(plan_.algorithm)) + " " + name_of(plan_.kind) +
                              " has more than 2^27 messages");
    }
    const auto endpoint = [&](std::uint32_t at) { return at < line.size() ? line.ranks[at] : at; };
    Message message{endpoint(from), endpoint(to), phase_, kNone, link, first, units, line.lap};
    for (const std::uint32_t earlier : after) edges_.emplace_back(earlier, id);
    if (message.from < num_ranks_ && (after.empty() || own) && !ready_[message.from].empty()) {
        edges_.emplace_back(gate(message.from), id);
    }
    const auto [place, fresh] =
        channels_.try_emplace({message.from, message.to, plan_.shape.pieces > 1 ? phase_ : 0}, id);
    if (!fresh) {
        out_->messages_[place->second].next = id;
        place->second = id;
    }
    if (message.to >= incoming_.size()) incoming_.resize(message.to + 1);
    incoming_[message.to].push_back(id);
    out_->messages_.push_back(message);
    return id;
}

// What opens when all has arrived that the rank received in the phases before; needs something there.
std::uint32_t ScheduleBuilder::gate(std::uint32_t rank) {
    Ids& before = ready_[rank];
    if (before.size() > 1) {
        const std::uint32_t id = kFirstGate + num_gates_++;
        for (const std::uint32_t earlier : before) edges_.emplace_back(earlier, id);
        before.assign(1, id);
    }
    return before[0];
}

void ScheduleBuilder::all_pairs() {
    const std::vector<std::int64_t>& units = *plan_.shape.pair_units;
    Line line{{}, {}, 0, 0, 0, 1};
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) line.ranks.push_back(rank);
    for (std::uint32_t from = 0; from < num_ranks_; ++from) {
        for (std::uint32_t distance = 1; distance < num_ranks_; ++distance) {
            const std::uint32_t to = (from + distance) % num_ranks_;
            const std::int64_t count = units[static_cast<std::size_t>(from) * num_ranks_ + to];
            if (count > 0) add(line, from, to, 0, count, {});
        }
    }
}

void ScheduleBuilder::piece(std::uint32_t index) {
    using enum CollectiveKind;
    const CollectiveKind kind = plan_.kind;
    const auto dims = static_cast<std::uint32_t>(dims_.size());
    const std::int64_t whole = out_->denominator_ / plan_.shape.pieces;
    for (Ids& ids : ready_) ids.clear();
    phase_ = 0;
    first_.assign(num_ranks_, index * whole);
    units_ = whole;
    if (kind == all_gather) {  // each rank's own part; dimension 0 parts the vector first
        for (std::uint32_t dim = 0; dim < dims; ++dim) {
            units_ /= dims_[dim];
            for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += coordinate(rank, dim) * units_;
        }
    }
    if (kind == gather) {  // parts in rank order
        units_ /= num_ranks_;
        for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += rank * units_;
    }
    switch (kind) {
        case all_reduce:
            for (std::uint32_t dim = 0; dim + 1 < dims; ++dim) phase(dim, reduce_scatter);
            phase(dims - 1, all_reduce);
            for (std::uint32_t dim = dims - 1; dim-- > 0;) phase(dim, all_gather);
            return;
        case all_gather:
        case broadcast:
        case scatter:
            for (std::uint32_t dim = dims; dim-- > 0;) phase(dim, kind);
            return;
        default:
            for (std::uint32_t dim = 0; dim < dims; ++dim) phase(dim, kind);
            return;
    }
}

// All lines of a dimension; of a rooted kind only those that lead to the root in the dimensions below.
void ScheduleBuilder::phase(std::uint32_t dim, CollectiveKind kind) {
    using enum CollectiveKind;
    const std::uint32_t size = dims_[dim];
    const bool rooted = kind == broadcast || kind == reduce || kind == gather || kind == scatter;
    if (kind == scatter) {
        for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += coordinate(rank, dim) * (units_ / size);
    }
    std::int64_t lap = out_->denominator_;  // what the members of a line hold together is in one piece
    if (kind == gather) lap = units_ * size;
    if (kind == scatter) lap = units_;
    for (std::uint32_t head = 0; head < num_ranks_ && size > 1; ++head) {
        if (coordinate(head, dim) != 0) continue;
        if (rooted && head % stride_[dim] != plan_.shape.root % stride_[dim]) continue;
        Line line{{}, {}, units_, coordinate(plan_.shape.root, dim), windows_[dim], lap};
        for (std::uint32_t at = 0; at < size; ++at) {
            line.ranks.push_back(head + at * stride_[dim]);
            line.first.push_back(first_[line.ranks.back()]);
        }
        if (kind == all_reduce && (algorithms_[dim] == Algorithm::ring || algorithms_[dim] == Algorithm::direct)) {
            lay(line, reduce_scatter, algorithms_[dim]);
        } else {
            lay(line, kind, algorithms_[dim]);
        }
    }
    end_phase();
    if (kind == reduce_scatter || kind == scatter) units_ /= size;
    if (kind == reduce_scatter) {
        for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += coordinate(rank, dim) * units_;
    }
    if (kind == all_gather || kind == gather) {
        for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] -= coordinate(rank, dim) * units_;
    }
    if (kind == all_gather || kind == gather) units_ *= size;
    // Ring and direct all-reduce: a reduce-scatter, then the way back.
    if (kind == all_reduce && (algorithms_[dim] == Algorithm::ring || algorithms_[dim] == Algorithm::direct)) {
        units_ /= size;
        for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += coordinate(rank, dim) * units_;
        phase(dim, all_gather);
    }
}

void ScheduleBuilder::end_phase() {
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) {
        if (incoming_[rank].empty()) continue;
        if (!ready_[rank].empty()) gate(rank);
        ready_[rank].insert(ready_[rank].end(), incoming_[rank].begin(), incoming_[rank].end());
    }
    for (Ids& ids : incoming_) ids.clear();
    ++phase_;
}

void ScheduleBuilder::finish() {
    const auto number = static_cast<std::uint32_t>(out_->messages_.size());
    for (auto& [earlier, later] : edges_) {
        if (earlier >= kFirstGate) earlier += number - kFirstGate;
        if (later >= kFirstGate) later += number - kFirstGate;
    }
    out_->waits_.assign(number + num_gates_, 0);
    out_->connect(num_ranks_, edges_);
}

// The tables, once all messages and the number of items are known.
void Schedule::connect(std::uint32_t num_ranks, std::span<const std::pair<std::uint32_t, std::uint32_t>> edges) {
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
    for (std::uint32_t i = 0; i < messages_.size(); ++i) {
        const Message& message = messages_[i];
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
    for (std::uint32_t i = 0; i < messages_.size(); ++i) {
        if (messages_[i].from < num_ranks) sent_[fill[messages_[i].from]++] = i;
    }
}

}  // namespace astra_sim::model
