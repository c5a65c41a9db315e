// Which link limits which flow: a heap of its flows by their ends, and how many of them cross each
// other link.
#include <algorithm>

#include "engine/network/fair_share.h"

namespace astra_sim::engine {

using model::LinkId;

// The flow's target is that of the link's clock, which starts anew with the first flow.
void FairShare::own(LinkId id, FlowId flow_id) {
  Link& link = links_[id];
  if (link.heap.empty()) {
    link.place = static_cast<std::uint32_t>(owning_.size());
    owning_.push_back(id);
  }
  flows_[flow_id].owner = id;
  link.heap.push_back(flow_id);
  sift(link, link.heap.size() - 1);
  if (link.known) recount(link, flow_id, true);
}

void FairShare::disown(FlowId flow_id) {
  Flow& flow = flows_[flow_id];
  Link& link = links_[flow.owner];
  flow.owner = model::kNone;
  const FlowId last = link.heap.back();
  link.heap.pop_back();
  if (last != flow_id) {
    link.heap[flow.place] = last;
    sift(link, flow.place);
  }
  if (!link.heap.empty()) {
    if (link.known) recount(link, flow_id, false);
    return;
  }
  link.known = false;
  link.end = kNever;
  owning_[link.place] = owning_.back();
  links_[owning_.back()].place = link.place;
  owning_.pop_back();
}

// Moves what stands at `at` up or down to where it belongs.
void FairShare::sift(Link& link, std::size_t at) {
  std::vector<FlowId>& heap = link.heap;
  const FlowId id = heap[at];
  const Volume target = flows_[id].target;
  const auto put = [&](std::size_t where, FlowId flow) {
    heap[where] = flow;
    flows_[flow].place = static_cast<std::uint32_t>(where);
  };
  while (at > 0 && flows_[heap[(at - 1) / 2]].target > target) {
    put(at, heap[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  for (std::size_t child = 2 * at + 1; child < heap.size(); child = 2 * at + 1) {
    if (child + 1 < heap.size() && flows_[heap[child + 1]].target < flows_[heap[child]].target)
      ++child;
    if (flows_[heap[child]].target >= target) break;
    put(at, heap[child]);
    at = child;
  }
  put(at, id);
}

void FairShare::recount(Link& link, FlowId flow, bool more) {
  const auto before = [](const Crossing& crossing, LinkId id) { return crossing.link < id; };
  for (const LinkId id : route_of(flows_[flow])) {
    const auto at = std::lower_bound(link.crossings.begin(), link.crossings.end(), id, before);
    const bool there = at != link.crossings.end() && at->link == id;
    if (!there) {
      link.crossings.insert(at, {id, 1});
    } else if (more) {
      ++at->flows;
    } else if (--at->flows == 0) {
      link.crossings.erase(at);
    }
  }
}

void FairShare::know(Link& link) {
  link.known = true;
  link.crossings.clear();
  for (const FlowId flow : link.heap) {
    for (const LinkId id : route_of(flows_[flow])) {
      if (tally_[id]++ == 0) link.crossings.push_back({id, 0});
    }
  }
  std::sort(link.crossings.begin(), link.crossings.end(),
            [](const Crossing& a, const Crossing& b) { return a.link < b.link; });
  for (Crossing& crossing : link.crossings) {
    crossing.flows = tally_[crossing.link];
    tally_[crossing.link] = 0;
  }
}

}  // namespace astra_sim::engine
