// The incremental solve of FairShare: which links a change can touch, and level filling among them.
#include <algorithm>
#include <functional>

#include "engine/network/fair_share.h"
#include "model/base/errors.h"

namespace astra_sim::engine {

using model::LinkId;
using model::Ps;

// True when no flow's rate can differ, or the quantum lets the solve wait.
bool FairShare::nothing_to_do(bool& deferred) {
  deferred = false;
  if (!started_.empty()) return false;
  if (dirty_.empty()) return true;
  for (; checked_ < dirty_.size() && !waiting_; ++checked_)
    waiting_ = has_fast_flow(links_[dirty_[checked_]]);
  if (!waiting_) return true;
  deferred = quantum_.rate_ppm > 0 && active_ > quantum_.above_flows && !over_quantum_;
  return deferred;
}

// True when a flow on the link is at least as fast as one that ended. Those that it limits are its
// fastest; of others it keeps the order as long as there is no solve.
bool FairShare::has_fast_flow(Link& link) {
  if (link.count == 0) return false;
  if (!link.heap.empty()) return link.level >= lowest_ended_;
  if (link.sorted == stamp_) {
    while (!flows_[link.list.back()].alive) {
      let_go(link.list.back());
      link.list.pop_back();
    }
    return rate(link.list.back()) >= lowest_ended_;
  }
  const auto fast = [&](FlowId id) { return flows_[id].alive && rate(id) >= lowest_ended_; };
  if (std::any_of(link.list.begin(), link.list.end(), fast)) return true;
  tidy(link);
  std::sort(link.list.begin(), link.list.end(),
            [&](FlowId a, FlowId b) { return rate(a) < rate(b); });
  link.sorted = stamp_;
  return false;
}

// No level below this one can change.
Rate FairShare::lowest_level() const {
  Rate lowest = lowest_ended_;
  for (const FlowId id : started_) {
    for (const LinkId link : route_of(flows_[id])) {
      lowest = std::min(lowest, links_[link].capacity / static_cast<Rate>(links_[link].count));
    }
  }
  return lowest;
}

void FairShare::solve(Ps now) {
  bool deferred = false;
  if (nothing_to_do(deferred) && deferred) {
    ++num_deferred_;
    return;
  }
  if (!started_.empty() || waiting_) {
    ++num_solves_;
    gather(now, lowest_level());
    num_visits_ += left_to_freeze_;
    fill(now);
  }
  forget_changes();
  while (!due_.empty() && links_[due_.front().second].end != due_.front().first) {
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
  }
}

void FairShare::forget_changes() {
  for (const LinkId link : dirty_) {
    links_[link].dirty = false;
    links_[link].freed = 0;
  }
  dirty_.clear();
  started_.clear();
  checked_ = 0;
  lowest_ended_ = kUnlimited;
  over_quantum_ = false;
  waiting_ = false;
}

// Opens all links of at least the lowest level that are connected to a change by the flows that
// they limit. From what is reached one can look for their links, or from the links that are left
// for what is reached: whichever ends first.
void FairShare::gather(Ps now, Rate lowest) {
  ++stamp_;
  affected_.clear();
  for (const LinkId id : dirty_) reach(id);
  for (const FlowId id : started_) {
    for (const LinkId link : route_of(flows_[id])) ++loads_[link].open;
  }
  left_to_freeze_ = started_.size();
  std::size_t looked_at = 0;
  std::size_t budget = owning_.size();
  for (std::size_t next = 0; next < affected_.size(); ++next) {
    const LinkId id = affected_[next];
    Link& link = links_[id];
    skip_ended(link);
    for (std::size_t at = link.first; at < link.list.size() && loads_[id].open < link.count;
         ++at, ++looked_at) {
      if (looked_at > budget) {
        if (open_rest(now, lowest, budget)) return;
        budget *= 2;
      }
      const LinkId owner = flows_[link.list[at]].owner;
      if (owner == model::kNone) continue;  // started, or ended
      if (links_[owner].opened != stamp_ && links_[owner].level >= lowest) open(now, owner);
    }
  }
}

// True when no link is left that would have to be opened; false when `budget` crossings did not
// suffice to say so.
bool FairShare::open_rest(Ps now, Rate lowest, std::size_t budget) {
  rest_.clear();
  for (const LinkId id : owning_) {
    if (links_[id].opened != stamp_ && links_[id].level >= lowest) rest_.push_back(id);
  }
  const auto reached = [&](LinkId id) { return loads_[id].stamp == stamp_; };
  std::size_t looked_at = 0;
  for (bool more = true; more && !rest_.empty();) {
    more = false;
    std::size_t kept = 0;
    for (const LinkId id : rest_) {
      if (looked_at > budget) return false;
      if (touches(links_[id], reached, looked_at)) {
        open(now, id);
        more = true;
      } else {
        rest_[kept++] = id;
      }
    }
    rest_.resize(kept);
  }
  return true;
}

// True when a flow of the link crosses one for which `wanted` holds.
template <class Wanted>
bool FairShare::touches(Link& link, const Wanted& wanted, std::size_t& looked_at) {
  if (!link.known && link.heap.size() > kFew) know(link);
  if (link.known) {
    for (const Crossing& crossing : link.crossings) {
      ++looked_at;
      if (wanted(crossing.link)) return true;
    }
    return false;
  }
  for (const FlowId flow : link.heap) {
    for (const LinkId id : route_of(flows_[flow])) {
      ++looked_at;
      if (wanted(id)) return true;
    }
  }
  return false;
}

void FairShare::reach(LinkId id) {
  Load& load = loads_[id];
  if (load.stamp == stamp_) return;
  load.stamp = stamp_;
  load.open = 0;
  affected_.push_back(id);
}

// Takes its flows' rates away and brings its clock to `now`.
void FairShare::open(Ps now, LinkId id) {
  Link& link = links_[id];
  link.served = clock(link, now);
  link.since = now;
  link.end = kNever;
  link.opened = stamp_;
  left_to_freeze_ += link.heap.size();
  if (!link.known && link.heap.size() > kFew) know(link);
  for_crossings(link, [&](LinkId crossed, std::uint32_t flows) {
    reach(crossed);
    loads_[crossed].open += flows;
    loads_[crossed].left += static_cast<Rate>(flows) * link.level;
  });
}

template <class Each>
void FairShare::for_crossings(Link& link, const Each& each) {
  if (link.known) {
    for (const Crossing& crossing : link.crossings) each(crossing.link, crossing.flows);
    return;
  }
  for (const FlowId flow : link.heap) {
    for (const LinkId id : route_of(flows_[flow])) each(id, 1);
  }
}

// Shares only rise while links are frozen, so a heap of lower bounds finds the least. All links of
// one level are found before any of them is frozen: that would raise the others' shares by what
// divisions have left over.
void FairShare::fill(Ps now) {
  const auto share_of = [&](LinkId id) {
    return loads_[id].left / static_cast<Rate>(loads_[id].open);
  };
  shares_.clear();
  for (const LinkId id : affected_) {
    if (loads_[id].open > 0)
      shares_.push_back({share_of(id), id});  // else its flows are all slower than the change
  }
  for (std::size_t at = shares_.size() / 2; at-- > 0;) sink(at, shares_[at]);
  while (left_to_freeze_ > 0) {
    Rate level = kUnlimited;
    level_.clear();
    while (!shares_.empty() && shares_.front().bound <= level) {
      const Share top = shares_.front();
      const Load& load = loads_[top.link];
      if (load.open > 0 &&
          load.left - top.bound * static_cast<Rate>(load.open) >= static_cast<Rate>(load.open)) {
        sink(0, {share_of(top.link), top.link});
        continue;
      }
      if (load.open > 0) {
        level = top.bound;  // the least of all bounds, hence of all shares
        level_.push_back(top.link);
      }
      const Share last = shares_.back();
      shares_.pop_back();
      if (!shares_.empty()) sink(0, last);
    }
    for (const LinkId id : level_) freeze(now, id, level);
  }
}

// Puts `share` where `at` is in the heap, or below.
void FairShare::sink(std::size_t at, Share share) {
  const std::size_t size = shares_.size();
  for (std::size_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
    child += static_cast<std::size_t>(child + 1 < size &&
                                      shares_[child + 1].bound < shares_[child].bound);
    if (shares_[child].bound >= share.bound) break;
    shares_[at] = shares_[child];
    at = child;
  }
  shares_[at] = share;
}

// A link's own flows are open until it is frozen, so it limits others, too, where more are open
// than it has.
void FairShare::freeze(Ps now, LinkId id, Rate share) {
  if (share <= 0) {
    throw model::OutOfRange(
        "too many messages share a link: each would get less than 2^-16 bytes/s");
  }
  if (loads_[id].open == 0) return;  // its flows went with another link of this level
  Link& link = links_[id];
  if (loads_[id].open > link.heap.size()) take_over(now, id);
  link.level = share;
  link.frozen = stamp_;
  left_to_freeze_ -= link.heap.size();
  for_crossings(link, [&](LinkId crossed, std::uint32_t flows) {
    loads_[crossed].open -= flows;
    loads_[crossed].left -= static_cast<Rate>(flows) * share;
  });
  find_end(id);
}

// Makes all open flows of a link its own.
void FairShare::take_over(Ps now, LinkId id) {
  Link& link = links_[id];
  if (link.heap.empty()) {
    link.served = 0;
    link.since = now;
  }
  const std::size_t open = loads_[id].open;
  if (open > 2 * link.heap.size()) link.known = false;  // counting anew is cheaper
  if (take_started(id, open - link.heap.size())) return;
  for (std::size_t at = link.first; link.heap.size() < open; ++at) {
    Flow& flow = flows_[link.list[at]];
    if (!flow.alive || flow.owner == id) continue;
    if (flow.owner != model::kNone) {
      const Link& owner = links_[flow.owner];
      if (owner.opened != stamp_ || owner.frozen == stamp_) continue;
      flow.target -= owner.served;
      disown(link.list[at]);
    }
    flow.target += link.served;
    own(id, link.list[at]);
  }
}

bool FairShare::take_started(LinkId id, std::size_t missing) {
  Link& link = links_[id];
  if (missing > started_.size() || kFew * started_.size() > link.list.size()) return false;
  newcomers_.clear();
  for (const FlowId started : started_)
    if (flows_[started].owner == model::kNone && crosses(flows_[started], id))
      newcomers_.push_back(started);
  if (newcomers_.size() < missing) return false;
  for (const FlowId flow : newcomers_) {
    flows_[flow].target += link.served;
    own(id, flow);
  }
  return true;
}

}  // namespace astra_sim::engine
