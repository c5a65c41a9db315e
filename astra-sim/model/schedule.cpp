// Plans of several dimensions and pieces: which lines do what, in which order, and the tables of a Schedule.
#include "model/schedule.h"

#include <algorithm>
#include <string>

#include "model/arithmetic.h"
#include "model/errors.h"

namespace astra_sim::model {

namespace {
constexpr std::size_t kMaxMessages = std::size_t{1} << 27;
constexpr std::uint32_t kMaxPieces = 4096;
using Wide = unsigned __int128;

[[noreturn]] void refuse(const CollectivePlan& plan, const std::string& why) {
    throw InvalidTopology("a " + std::string(name_of(plan.algorithm)) + " " + name_of(plan.kind) + " " + why);
}

bool can(Algorithm algorithm, CollectiveKind kind) {
    using enum CollectiveKind;
    switch (algorithm) {
        case Algorithm::ring:
        case Algorithm::direct:
            return true;
        case Algorithm::halving_doubling:
            return kind != all_to_all;
        case Algorithm::double_binary_tree:
            return kind == all_reduce || kind == broadcast || kind == reduce || kind == barrier;
        case Algorithm::in_switch:
            return kind != all_to_all && kind != gather && kind != scatter;
        case Algorithm::measured:
            return false;
    }
    return false;
}

// In a plan of several dimensions, an all-reduce is a reduce-scatter and an all-gather in all but the last.
bool can_in_dimension(Algorithm algorithm, CollectiveKind kind, bool last) {
    if (kind != CollectiveKind::all_reduce || last) return can(algorithm, kind);
    return can(algorithm, CollectiveKind::reduce_scatter) && can(algorithm, CollectiveKind::all_gather);
}

}  // namespace

void Schedule::check(const CollectivePlan& plan, std::size_t num_ranks) {
    const CollectiveShape& shape = plan.shape;
    std::size_t product = 1;
    for (const std::uint32_t size : shape.dims) {
        product *= size;
        if (size == 0 || product > num_ranks) break;
    }
    if (!shape.dims.empty() && product != num_ranks) {
        refuse(plan, "has dimensions whose product is not its " + std::to_string(num_ranks) + " ranks");
    }
    if (!shape.algorithms.empty() && shape.algorithms.size() != std::max<std::size_t>(1, shape.dims.size())) {
        refuse(plan, "has " + std::to_string(shape.algorithms.size()) + " algorithms for " +
                         std::to_string(shape.dims.size()) + " dimensions: one per dimension is needed");
    }
    const std::size_t dims = std::max<std::size_t>(1, shape.dims.size());
    for (std::size_t dim = 0; dim < dims; ++dim) {
        const Algorithm algorithm = shape.algorithms.empty() ? plan.algorithm : shape.algorithms[dim];
        if (!can_in_dimension(algorithm, plan.kind, dim + 1 == dims)) {
            refuse(plan, "is not possible (dimension " + std::to_string(dim) + "): " + name_of(algorithm) +
                             " has no such message pattern");
        }
        if (algorithm == Algorithm::in_switch && shape.topology == nullptr) {
            refuse(plan, "needs to know the topology, to find its switch");
        }
    }
    if (shape.pieces < 1 || shape.pieces > kMaxPieces || shape.root >= num_ranks) {
        refuse(plan, "has " + std::to_string(shape.pieces) + " pieces and root " + std::to_string(shape.root) +
                         ": 1 to 4096 pieces and a root among its " + std::to_string(num_ranks) +
                         " ranks are possible");
    }
    if (shape.pair_units == nullptr) return;
    const std::vector<std::int64_t>& units = *shape.pair_units;
    const bool flat = shape.dims.empty() && shape.pieces == 1 && plan.algorithm == Algorithm::direct;
    const bool sound = std::all_of(units.begin(), units.end(), [](auto u) { return u >= 0 && u <= kMaxBytes; });
    if (plan.kind != CollectiveKind::all_to_all || !flat || units.size() != num_ranks * num_ranks || !sound) {
        refuse(plan, "with a size for each pair has to be a direct all-to-all, flat, in one piece, with " +
                         std::to_string(num_ranks * num_ranks) + " sizes of 0 to 2^60");
    }
}

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

Bytes Schedule::exact_bytes(std::uint32_t message, Bytes bytes) const {
    const Message& item = messages_[message];
    const std::int64_t longer = bytes % denominator_;  // the first so many parts have one byte more
    std::int64_t more = std::clamp<std::int64_t>(longer - item.first, 0, item.units);
    more +=
        std::clamp<std::int64_t>(item.first + item.units - denominator_, 0, longer);  // past the end: from the start
    return item.units * (bytes / denominator_) + more;
}

ScheduleBuilder::ScheduleBuilder(const CollectivePlan& plan, std::span<const DeviceId> group)
    : plan_(plan),
      group_(group),
      num_ranks_(static_cast<std::uint32_t>(group.size())),
      dims_(plan.shape.dims),
      algorithms_(plan.shape.algorithms),
      out_(new Schedule),
      ready_(num_ranks_),
      incoming_(num_ranks_) {
    if (dims_.empty()) dims_.push_back(num_ranks_);
    if (algorithms_.empty()) algorithms_.assign(dims_.size(), plan.algorithm);
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

// `own`: waits for the phase before even though it waits for messages of this one.
std::uint32_t ScheduleBuilder::add(const Line& line, std::uint32_t from, std::uint32_t to, std::int64_t first,
                                   std::int64_t units, std::span<const std::uint32_t> after, bool own, LinkId link) {
    const auto id = static_cast<std::uint32_t>(out_->messages_.size());
    if (id >= kMaxMessages) refuse(plan_, "has more than 2^27 messages");
    const auto endpoint = [&](std::uint32_t at) { return at < line.size() ? line.ranks[at] : at; };
    Message message{endpoint(from), endpoint(to), phase_, 0, kNone, link, first, units};
    for (const std::uint32_t earlier : after) edges_.emplace_back(earlier, id);
    message.waits = static_cast<std::uint32_t>(after.size());
    if (message.from < num_ranks_) {
        ++message.waits;  // its rank's start
        if (after.empty() || own) {
            for (const std::uint32_t earlier : ready_[message.from]) edges_.emplace_back(earlier, id);
            message.waits += static_cast<std::uint32_t>(ready_[message.from].size());
        }
    }
    const auto [place, fresh] =
        channels_.try_emplace({message.from, message.to, plan_.shape.pieces > 1 ? phase_ : 0}, id);
    if (!fresh) {
        out_->messages_[place->second].next = id;
        place->second = id;
        ++message.waits;
    }
    if (message.to >= incoming_.size()) incoming_.resize(message.to + 1);
    incoming_[message.to].push_back(id);
    out_->messages_.push_back(message);
    return id;
}

void ScheduleBuilder::all_pairs() {
    const std::vector<std::int64_t>& units = *plan_.shape.pair_units;
    Line line{{}, {}, 0, 0};
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
    if (kind == all_gather || kind == gather || kind == scatter) {  // each rank's own part
        std::int64_t part = whole;
        for (std::uint32_t dim = 0; dim < dims; ++dim) {
            part /= dims_[dim];
            for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += coordinate(rank, dim) * part;
        }
        units_ = kind == scatter ? whole : part;
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
    for (std::uint32_t head = 0; head < num_ranks_ && size > 1; ++head) {
        if (coordinate(head, dim) != 0) continue;
        if (rooted && head % stride_[dim] != plan_.shape.root % stride_[dim]) continue;
        Line line{{}, {}, units_, coordinate(plan_.shape.root, dim)};
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
    if (kind == all_gather) {
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
        if (!incoming_[rank].empty()) ready_[rank] = incoming_[rank];
    }
    for (Ids& ids : incoming_) ids.clear();
    ++phase_;
}

void ScheduleBuilder::finish() {
    Schedule& out = *out_;
    const auto n = static_cast<std::uint32_t>(out.messages_.size());
    out.after_begin_.assign(n + 1, 0);
    for (const auto& [earlier, later] : edges_) ++out.after_begin_[earlier + 1];
    for (std::uint32_t i = 0; i < n; ++i) out.after_begin_[i + 1] += out.after_begin_[i];
    out.after_.resize(edges_.size());
    Ids fill(out.after_begin_.begin(), out.after_begin_.end() - 1);
    for (const auto& [earlier, later] : edges_) out.after_[fill[earlier]++] = later;
    out.received_.assign(num_ranks_, 0);
    out.sent_begin_.assign(num_ranks_ + 1, 0);
    for (const Message& message : out.messages_) {
        if (message.from < num_ranks_) ++out.sent_begin_[message.from + 1];
        if (message.to < num_ranks_) ++out.received_[message.to];
    }
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) out.sent_begin_[rank + 1] += out.sent_begin_[rank];
    out.sent_.resize(out.sent_begin_[num_ranks_]);
    fill.assign(out.sent_begin_.begin(), out.sent_begin_.end() - 1);
    for (std::uint32_t i = 0; i < n; ++i) {
        if (out.messages_[i].from < num_ranks_) out.sent_[fill[out.messages_[i].from]++] = i;
    }
}

}  // namespace astra_sim::model
