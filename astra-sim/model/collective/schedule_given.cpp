// What a collective's plan may ask for, and schedules given message by message.
#include <algorithm>
#include <map>
#include <string>

#include "model/base/errors.h"
#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace {
constexpr std::uint32_t kMaxPieces = 4096;

[[noreturn]] void refuse(const CollectivePlan& plan, const std::string& why) {
  throw InvalidTopology("a " + std::string(name_of(plan.algorithm)) + " " + name_of(plan.kind) +
                        " " + why);
}

// In a plan of several dimensions, an all-reduce is a reduce-scatter and an all-gather in all but
// the last.
bool can_in_dimension(Algorithm algorithm, CollectiveKind kind, bool last) {
  if (kind != CollectiveKind::kAllReduce || last) return can(algorithm, kind);
  return can(algorithm, CollectiveKind::kReduceScatter) &&
         can(algorithm, CollectiveKind::kAllGather);
}

void check_given(const CollectivePlan& plan, std::size_t num_ranks) {
  if (plan.schedule == nullptr) refuse(plan, "needs a schedule");
  if (plan.schedule->num_ranks() != num_ranks) {
    refuse(plan, "has a schedule for " + std::to_string(plan.schedule->num_ranks()) +
                     " ranks, but its group has " + std::to_string(num_ranks));
  }
  const CollectiveShape& shape = plan.shape;
  if (plan.algorithm != Algorithm::kCustom) return;
  if (!shape.dims.empty() || !shape.windows.empty() || shape.pieces != 1 ||
      shape.pair_units != nullptr) {
    refuse(plan, "cannot have dimensions, windows, pieces or sizes per pair besides its schedule");
  }
}

}  // namespace

void Schedule::check(const CollectivePlan& plan, std::size_t num_ranks) {
  if (plan.schedule != nullptr || plan.algorithm == Algorithm::kCustom)
    return check_given(plan, num_ranks);
  const CollectiveShape& shape = plan.shape;
  std::size_t product = 1;
  for (const std::uint32_t size : shape.dims) {
    product *= size;
    if (size == 0 || product > num_ranks) break;
  }
  if (!shape.dims.empty() && product != num_ranks) {
    refuse(plan, "has dimensions whose product is not its " + std::to_string(num_ranks) + " ranks");
  }
  if (!shape.algorithms.empty() &&
      shape.algorithms.size() != std::max<std::size_t>(1, shape.dims.size())) {
    refuse(plan, "has " + std::to_string(shape.algorithms.size()) + " algorithms for " +
                     std::to_string(shape.dims.size()) +
                     " dimensions: one per dimension is needed");
  }
  const std::size_t dims = std::max<std::size_t>(1, shape.dims.size());
  if (!shape.windows.empty() && shape.windows.size() != dims) {
    refuse(plan, "has " + std::to_string(shape.windows.size()) + " windows for " +
                     std::to_string(dims) + " dimensions: one per dimension is needed");
  }
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const Algorithm algorithm = shape.algorithms.empty() ? plan.algorithm : shape.algorithms[dim];
    if (!can_in_dimension(algorithm, plan.kind, dim + 1 == dims)) {
      refuse(plan, "is not possible (dimension " + std::to_string(dim) +
                       "): " + name_of(algorithm) + " has no such message pattern");
    }
    if (entry_of(algorithm).on_switch && shape.topology == nullptr) {
      refuse(plan, "needs to know the topology, to find its switch");
    }
    if (!shape.windows.empty() && shape.windows[dim] != 0 && !entry_of(algorithm).windows) {
      refuse(plan, "has a window in dimension " + std::to_string(dim) +
                       ": only direct messages have one");
    }
  }
  if (shape.pieces < 1 || shape.pieces > kMaxPieces || shape.root >= num_ranks) {
    refuse(plan, "has " + std::to_string(shape.pieces) + " pieces and root " +
                     std::to_string(shape.root) + ": 1 to 4096 pieces and a root among its " +
                     std::to_string(num_ranks) + " ranks are possible");
  }
  if (shape.pair_units == nullptr) return;
  const std::vector<std::int64_t>& units = *shape.pair_units;
  const bool flat = shape.dims.empty() && shape.windows.empty() && shape.pieces == 1 &&
                    plan.algorithm == Algorithm::kDirect;
  const bool sound =
      std::all_of(units.begin(), units.end(), [](auto u) { return u >= 0 && u <= kMaxBytes; });
  if (plan.kind != CollectiveKind::kAllToAll || !flat || units.size() != num_ranks * num_ranks ||
      !sound) {
    refuse(plan,
           "with a size for each pair has to be a direct all-to-all, flat, in one piece, with " +
               std::to_string(num_ranks * num_ranks) + " sizes of 0 to 2^60");
  }
}

std::shared_ptr<const Schedule> Schedule::custom(std::uint32_t num_ranks, std::int64_t denominator,
                                                 std::span<const CustomMessage> messages) {
  const auto complain = [](std::size_t message, const std::string& what) {
    throw InvalidTopology("message " + std::to_string(message) + " of a custom collective " + what);
  };
  if (num_ranks == 0 || denominator < 1 || denominator > kMaxBytes ||
      messages.size() >= kNone / 2) {
    throw InvalidTopology("a custom collective of " + std::to_string(num_ranks) + " ranks in " +
                          std::to_string(denominator) +
                          " units: at least one rank, and 1 to 2^60 units are possible");
  }
  std::shared_ptr<Schedule> out(new Schedule);
  out->denominator_ = denominator;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> channels;
  for (std::uint32_t id = 0; id < messages.size(); ++id) {
    const CustomMessage& given = messages[id];
    if (given.from >= num_ranks || given.to >= num_ranks || given.from == given.to) {
      complain(id, "goes from rank " + std::to_string(given.from) + " to rank " +
                       std::to_string(given.to) + ": two different ranks of " +
                       std::to_string(num_ranks) + " are needed");
    }
    if (given.first < 0 || given.units < 0 || given.first >= denominator ||
        given.units > denominator) {
      complain(id, "carries " + std::to_string(given.units) + " units from unit " +
                       std::to_string(given.first) + " on: the vector has " +
                       std::to_string(denominator));
    }
    for (const std::uint32_t earlier : given.after) {
      if (earlier >= messages.size() || messages[earlier].to != given.from) {
        complain(id, "waits for message " + std::to_string(earlier) +
                         ", which does not arrive at its sender");
      }
      edges.emplace_back(earlier, id);
    }
    out->messages_.push_back(
        {given.from, given.to, 0, kNone, kNone, given.first, given.units, denominator});
    const auto [place, fresh] = channels.try_emplace({given.from, given.to}, id);
    if (!fresh) out->messages_[place->second].next = id;
    place->second = id;
  }
  out->number_ = static_cast<std::uint32_t>(messages.size());
  out->waits_.assign(messages.size(), 0);
  out->connect(num_ranks, edges);
  out->check_acyclic();
  return out;
}

void Schedule::check_acyclic() const {
  std::vector<std::uint32_t> waits(waits_);
  std::vector<std::uint32_t> ready;
  const auto release = [&](std::uint32_t item) {
    if (--waits[item] == 0) ready.push_back(item);
  };
  for (const std::uint32_t message : sent_) release(message);  // all ranks have started
  for (std::size_t at = 0; at < ready.size(); ++at) {
    if (messages_[ready[at]].next != kNone) release(messages_[ready[at]].next);
    for (const std::uint32_t later : after(ready[at])) release(later);
  }
  if (ready.size() == messages_.size()) return;
  const auto stuck =
      std::find_if(waits.begin(), waits.end(), [](std::uint32_t left) { return left != 0; });
  throw InvalidTopology(
      "message " + std::to_string(stuck - waits.begin()) +
      " of a custom collective never leaves: messages wait for each other in a circle");
}

}  // namespace astra_sim::model
