// Flows of the fair-share network: starts, ends, and what is known of links; the solve itself is in
// fair_solve.cpp.
#include "engine/network/fair_share.h"

#include <algorithm>
#include <functional>
#include <string>

#include "model/base/errors.h"

namespace astra_sim::engine {

using model::LinkId;
using model::Ps;

namespace {
constexpr int kRateBits = 16;
constexpr std::size_t kCorrections = 8;  // of what a link counts, each as long as so many flows
constexpr unsigned __int128 kPsPerSecond = 1'000'000'000'000ULL;
}  // namespace

FairShare::FairShare(std::span<const model::BytesPerSecond> capacities, RateQuantum quantum)
    : quantum_(quantum) {
  links_.resize(capacities.size());
  tally_.resize(capacities.size());
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    if (capacities[i] >= model::BytesPerSecond{1} << (63 - kRateBits)) {
      throw model::OutOfRange(
          "a link of " + std::to_string(capacities[i]) +
          " bytes/s is too fast for the fair-share network: less than 2^47 (140 TB/s) is "
          "possible");
    }
    links_[i].capacity = capacities[i] << kRateBits;
    loads_.push_back({links_[i].capacity});
  }
}

Rate Incast::capacity(Rate full, model::Bytes bursts) const {
  if (bursts <= buffer_bytes) return full;
  using Wide = unsigned __int128;
  constexpr Wide kWhole = 1'000'000;
  const auto ppm = static_cast<Wide>(efficiency_ppm);
  const Wide slowed = static_cast<Wide>(bursts - buffer_bytes) * kWhole;
  const Wide taken = static_cast<Wide>(buffer_bytes) * ppm + slowed;
  // In units of 2^-20, so that the product fits for any sizes.
  constexpr Wide kUnit = Wide{1} << 20;
  const Wide share = static_cast<Wide>(bursts) * ppm * kUnit / taken;
  return static_cast<Rate>(static_cast<Wide>(full) * share / kUnit);
}

void FairShare::crowd(const Incast& incast, std::span<const LinkId> links) {
  if (incast.off()) return;
  incast_ = incast;
  queues_.resize(links_.size());
  for (const LinkId link : links) queues_[link].full = links_[link].capacity;
}

void FairShare::add_burst(FlowId id, bool comes) {
  if (queues_.empty()) return;
  bool over = false;
  for (const LinkId link : route_of(flows_[id])) {
    SwitchQueue& queue = queues_[link];
    if (queue.full == 0) continue;
    queue.bursts += comes ? bursts_[id] : -bursts_[id];
    over = over || queue.bursts > incast_.buffer_bytes;
    const Rate capacity = incast_.capacity(queue.full, queue.bursts);
    loads_[link].left += capacity - links_[link].capacity;
    links_[link].capacity = capacity;
  }
  num_overflows_ += comes && over ? 1 : 0;
}

void FairShare::touch(LinkId link) {
  if (links_[link].dirty) return;
  links_[link].dirty = true;
  dirty_.push_back(link);
}

FairShare::Volume FairShare::volume_of(model::Bytes bytes) {
  return (static_cast<Volume>(bytes) << kRateBits) * kPsPerSecond;
}

model::Bytes FairShare::bytes_of(Volume volume) {
  constexpr Volume kByte = kPsPerSecond << kRateBits;
  return static_cast<model::Bytes>((volume + kByte - 1) / kByte);
}

FlowId FairShare::start(Ps now, std::span<const LinkId> route, model::Bytes bytes) {
  return go_on(now, route, volume_of(bytes));
}

FlowId FairShare::go_on(Ps now, std::span<const LinkId> route, Volume left) {
  const std::size_t length = route.size();
  if (free_flows_.empty()) {
    free_flows_.push_back(static_cast<FlowId>(flows_.size()));
    flows_.emplace_back();
  }
  const FlowId id = free_flows_.back();
  free_flows_.pop_back();
  Flow& flow = flows_[id];
  flow.target = left;
  flow.owner = model::kNone;
  flow.length = static_cast<std::uint16_t>(length);
  flow.held = flow.length;
  flow.alive = true;
  if (length > kInline) {
    if (free_routes_.size() <= length) free_routes_.resize(length + 1);
    if (free_routes_[length].empty()) {
      free_routes_[length].push_back(static_cast<std::uint32_t>(routes_.size()));
      routes_.resize(routes_.size() + length);
    }
    flow.route[0] = free_routes_[length].back();
    free_routes_[length].pop_back();
    std::copy(route.begin(), route.end(), routes_.begin() + flow.route[0]);
  } else {
    std::copy(route.begin(), route.end(), flow.route);
  }
  if (!queues_.empty()) {
    if (bursts_.size() <= id) bursts_.resize(flows_.size());
    bursts_[id] = std::min(bytes_of(left), incast_.burst_bytes);
  }
  add_burst(id, true);
  for (const LinkId link_id : route) {
    Link& link = links_[link_id];
    if (link.count++ == 0) link.busy_since = now;
    link.list.push_back(id);
    link.peak = std::max(link.peak, link.count);
    touch(link_id);
  }
  started_.push_back(id);
  ++active_;
  return id;
}

void FairShare::remove(Ps now, FlowId id) {
  Flow& flow = flows_[id];
  const Rate rate = links_[flow.owner].level;
  lowest_ended_ = std::min(lowest_ended_, rate);
  disown(id);
  flow.alive = false;
  --active_;
  add_burst(id, false);
  for (const LinkId link_id : route_of(flow)) {
    Link& link = links_[link_id];
    loads_[link_id].left += rate;
    link.freed += rate;
    if (quantum_.rate_ppm > 0 && !over_quantum_) {
      over_quantum_ = static_cast<Volume>(link.freed) * 1'000'000 >
                      static_cast<Volume>(link.capacity) * static_cast<Volume>(quantum_.rate_ppm);
    }
    if (--link.count == 0) link.busy += now - link.busy_since;
    touch(link_id);
    if (link.list.size() > 2 * std::size_t{link.count}) tidy(link);
  }
}

// Takes ended flows out of the list; the rest keeps its order.
void FairShare::tidy(Link& link) {
  std::erase_if(link.list, [&](FlowId id) {
    if (flows_[id].alive) return false;
    let_go(id);
    return true;
  });
  link.first = 0;
}

// Flows that start together end together, so those that ended are in front.
void FairShare::skip_ended(Link& link) {
  while (link.first < link.list.size() && !flows_[link.list[link.first]].alive) ++link.first;
}

// A list forgets an ended flow; its number is free when none has it any more.
void FairShare::let_go(FlowId id) {
  Flow& flow = flows_[id];
  if (--flow.held > 0) return;
  if (flow.length > kInline) free_routes_[flow.length].push_back(flow.route[0]);
  free_flows_.push_back(id);
}

void FairShare::end_due(Ps now, std::vector<FlowId>& out) {
  while (!due_.empty() && due_.front().first <= now) {
    const auto [end, id] = due_.front();
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
    Link& link = links_[id];
    if (link.end != end) continue;
    link.end = kNever;
    const Volume served = clock(link, now);
    const std::size_t before = out.size();
    while (!link.heap.empty() && flows_[link.heap.front()].target <= served) {
      // Counting anew is cheaper than many corrections.
      if (kCorrections * (out.size() - before) > link.heap.size()) link.known = false;
      out.push_back(link.heap.front());
      remove(now, out.back());
    }
    if (!link.heap.empty()) find_end(id);
  }
}

// When its first flow ends, at the level and from the time of the last solve.
void FairShare::find_end(LinkId id) {
  const Link& link = links_[id];
  const Volume left = flows_[link.heap.front()].target - link.served;
  const auto rate = static_cast<Volume>(link.level);
  const Volume span = (left + rate - 1) / rate;
  const auto limit = static_cast<Volume>(model::kHorizon - link.since);
  set_end(id, span > limit ? model::kHorizon + 1 : link.since + static_cast<Ps>(span));
}

void FairShare::set_end(LinkId link, Ps end) {
  links_[link].end = end;
  due_.emplace_back(end, link);
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
  if (due_.size() < 4 * links_.size() + 1024) return;
  const auto stale = [&](const Due& due) { return links_[due.second].end != due.first; };
  due_.erase(std::remove_if(due_.begin(), due_.end(), stale), due_.end());
  std::sort(due_.begin(), due_.end());
  due_.erase(std::unique(due_.begin(), due_.end()), due_.end());  // sorted upwards is a heap
}

// A stale entry may be earlier than the truth: then the caller asks again at that time.
Ps FairShare::next_end() const { return due_.empty() ? kNever : due_.front().first; }

model::Bytes FairShare::bytes_left(FlowId id, Ps now) const {
  const Flow& flow = flows_[id];
  const Volume served = clock(links_[flow.owner], now);
  return served >= flow.target ? 0 : bytes_of(flow.target - served);
}

model::Bytes FairShare::bytes_left_on(LinkId id, Ps now) const {
  model::Bytes left = 0;
  for (const FlowId flow : links_[id].list) {
    if (!flows_[flow].alive) continue;
    const bool solved = flows_[flow].owner != model::kNone;
    left += solved ? bytes_left(flow, now) : bytes_of(flows_[flow].target);
  }
  return left;
}

Ps FairShare::busy_ps(LinkId id, Ps now) const {
  const Link& link = links_[id];
  return link.busy + (link.count == 0 ? 0 : now - link.busy_since);
}

}  // namespace astra_sim::engine
