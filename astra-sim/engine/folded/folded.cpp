// Evaluates chains in integer max-plus arithmetic, and builds the graph that proves it.
#include "engine/folded/folded.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "model/base/arithmetic.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::engine {

namespace {

using model::InvalidGraph;

void check_chain(const Chain& chain) {
  if (chain.sites.empty())
    throw InvalidGraph("a chain needs at least one collective site, to say which group runs it");
  const CollectiveSite& first = chain.sites[0];
  for (const CollectiveSite& site : chain.sites) {
    check_site(site);
    if (site.topology != first.topology || site.group != first.group ||
        site.options.network != first.options.network ||
        site.options.endpoint_delay_ps != first.options.endpoint_delay_ps) {
      throw InvalidGraph(
          "the sites of a chain differ in topology, group or options: they have to be the same");
    }
  }
  for (const ChainBlock& block : chain.blocks) {
    if (block.repeat < 0) {
      throw InvalidGraph("a chain's block is repeated " + std::to_string(block.repeat) +
                         " times: 0 or more is possible");
    }
    for (const ChainItem& item : block.items) {
      const std::size_t durations = item.compute_ps.size();
      if (durations == 0 ? item.site >= chain.sites.size()
                         : durations != 1 && durations != first.group.size()) {
        throw InvalidGraph("a chain's item names site " + std::to_string(item.site) + " of " +
                           std::to_string(chain.sites.size()) + " and gives " +
                           std::to_string(durations) + " durations for " +
                           std::to_string(first.group.size()) +
                           " ranks: none, one or one per rank is possible");
      }
      for (const Ps span : item.compute_ps) {
        if (span < 0 || span > model::kMaxSpan) {
          throw InvalidGraph("a chain's compute item lasts " + std::to_string(span) +
                             " ps: 0 to 2^60 is possible");
        }
      }
    }
  }
}

// Whether the end of one collective cannot hold up the next on the links of a way. On a way of one
// link from a rank it has left that link when the rank begins the next. On longer ways at one speed
// a message of the next comes in at the latest one serialisation behind the last of the one before,
// without which its receiver does not begin; a ring or direct receiver is busy with a message of
// its own, as long, until then. Trees may pass it on at once.
bool clear_behind(const Chain& chain, std::span<const Use> uses) {
  const std::span<const model::Link> links = chain.sites[0].topology->links();
  const std::uint32_t devices = chain.sites[0].topology->num_devices();
  const auto one_link = [&](const Use& use) {
    const model::Link& link = links[use.link];
    return link.from < devices &&
           use.flow == (static_cast<std::uint64_t>(link.from) << 32 | link.to);
  };
  const auto as_fast = [&](const Use& use) {
    return links[use.link].bandwidth_bytes_per_s == links[uses[0].link].bandwidth_bytes_per_s;
  };
  const auto scheduled = [](const CollectiveSite& site) { return site.scheduled(); };
  return std::all_of(uses.begin(), uses.end(), one_link) ||
         (std::none_of(chain.sites.begin(), chain.sites.end(), scheduled) &&
          std::all_of(uses.begin(), uses.end(), as_fast));
}

bool chain_is_linear(const Chain& chain) {
  const CollectiveSite& first = chain.sites[0];
  if (first.options.network == NetworkKind::kCongestionUnaware) return true;
  if (first.options.network == NetworkKind::kFairShare) {
    return std::all_of(chain.sites.begin(), chain.sites.end(), is_linear);
  }
  std::vector<Use> uses;
  for (const CollectiveSite& site : chain.sites) {
    const std::vector<Use> more = uses_of(site);
    uses.insert(uses.end(), more.begin(), more.end());
  }
  return uses_are_private(*first.topology, uses) && clear_behind(chain, uses);
}

// Where every hop takes time, whoever ends at a time does so by events made before it, which one
// batch holds; messages that take none arrive in a later batch the more links they cross, so that
// who begins next depends on their ways.
bool keeps_step(const CollectiveSite& site, Bytes bytes) {
  if (site.algorithm == model::Algorithm::kMeasured) return true;
  if (bytes > 0 && site.schedule == nullptr) return true;
  const Topology& topology = *site.topology;
  return !site.scheduled() && topology.is_plain() &&
         topology.dimensions()[0].kind != model::TopologyKind::kRing;
}

void check_time(Ps time) {
  if (time < 0 || time > model::kHorizon - model::kMaxSpan) {
    throw model::OutOfRange("a chain reaches " + std::to_string(time) +
                            " ps: 0 to 2^62 - 2^60 is possible");
  }
}

}  // namespace

FoldedChain::FoldedChain(const Chain& chain) {
  check_chain(chain);
  num_ranks_ = chain.sites[0].group.size();
  linear_ = chain_is_linear(chain);
  std::map<std::pair<std::uint32_t, Bytes>, std::int32_t> known;
  for (const ChainBlock& block : chain.blocks) {
    Block compiled{{}, block.repeat};
    for (const ChainItem& item : block.items) {
      if (!item.compute_ps.empty()) {
        compiled.items.push_back({item.compute_ps, -1});
        continue;
      }
      const auto [place, fresh] =
          known.try_emplace({item.site, item.bytes}, static_cast<std::int32_t>(maps_.size()));
      if (fresh) {
        maps_.push_back(CollectiveMap::isolated(chain.sites[item.site], item.bytes));
        keeps_step_.push_back(keeps_step(chain.sites[item.site], item.bytes));
      }
      compiled.items.push_back({{}, place->second});
    }
    blocks_.push_back(std::move(compiled));
  }
  next_.resize(num_ranks_);
}

Ps FoldedChain::end(Ps start_ps) {
  const std::vector<Ps> starts(num_ranks_, start_ps);
  std::vector<Ps> ends(num_ranks_);
  end(starts, ends);
  return *std::max_element(ends.begin(), ends.end());
}

void FoldedChain::end(std::span<const Ps> starts_ps, std::span<Ps> ends_ps) {
  at_.assign(starts_ps.begin(), starts_ps.end());
  for (const Ps time : at_) check_time(time);
  in_step_ = true;
  for (const Block& block : blocks_) {
    for (std::int64_t done = 0; done < block.repeat; ++done) {
      layer_start_ = at_;
      const bool in_step = in_step_;
      for (const Item& item : block.items)
        item.map < 0 ? pass_compute(item) : pass_collective(item);
      if ((linear_ || in_step_ == in_step) && leap(block.repeat - done - 1)) break;
    }
  }
  std::copy(at_.begin(), at_.end(), ends_ps.begin());
}

void FoldedChain::pass_compute(const Item& item) {
  const bool common = item.compute_ps.size() == 1;
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    at_[rank] += item.compute_ps[common ? 0 : rank];
    check_time(at_[rank]);
  }
  const auto lasts = [](Ps span) { return span > 0; };
  if (std::all_of(item.compute_ps.begin(), item.compute_ps.end(), lasts)) {
    in_step_ = true;
  } else if (std::any_of(item.compute_ps.begin(), item.compute_ps.end(), lasts)) {
    in_step_ = false;
  }
}

void FoldedChain::pass_collective(const Item& item) {
  const auto index = static_cast<std::size_t>(item.map);
  const CollectiveMap& map = maps_[index];
  const bool together =
      std::all_of(at_.begin(), at_.end(), [&](Ps time) { return time == at_[0]; });
  if (!linear_ && !map.linear() && together && !in_step_) {
    throw model::NotFoldable(
        "ranks start a collective whose messages share links at one time, but after messages that "
        "take none: the "
        "order of service depends on their ways, so the expanded graph has to be evaluated");
  }
  if (together && map.ends_together()) {
    for (Ps& time : at_) time += map.simultaneous_ps();
  } else if (together || linear_) {
    map.apply(at_, next_);
    at_.swap(next_);
  } else {
    throw model::NotFoldable(
        "ranks that have drifted apart start a collective whose messages may wait on links, for "
        "each other or for "
        "those of the one before: that depends on their starts, so the expanded graph has to be "
        "evaluated");
  }
  in_step_ = keeps_step_[index];
  for (const Ps time : at_) check_time(time);
}

// Integer max-plus maps commute with a common shift: when a layer moved every rank by the same
// amount, so will all further identical layers.
bool FoldedChain::leap(std::int64_t remaining) {
  const Ps moved = at_[0] - layer_start_[0];
  for (std::size_t rank = 1; rank < num_ranks_; ++rank) {
    if (at_[rank] - layer_start_[rank] != moved) return false;
  }
  const Ps rest = model::repeated_ps(remaining, moved);
  for (Ps& time : at_) {
    if (rest > model::kHorizon - model::kMaxSpan - time) check_time(model::kHorizon);
    time += rest;
  }
  return true;
}

std::shared_ptr<const ExecutionGraph> expand(const Chain& chain,
                                             std::span<const Ps> start_offsets_ps) {
  check_chain(chain);
  const std::vector<DeviceId>& group = chain.sites[0].group;
  const std::size_t n = group.size();
  model::GraphBuilder builder(chain.sites[0].topology->num_devices());
  const model::GroupId id = builder.add_group(group);
  for (const CollectiveSite& site : chain.sites) builder.add_plan(site.plan(id));
  for (std::size_t rank = 0; rank < n; ++rank)
    builder.compute(group[rank], start_offsets_ps[rank], {});
  model::CallId calls = 0;
  std::uint64_t parent = 0;  // of rank 0; the others follow
  for (const ChainBlock& block : chain.blocks) {
    for (std::int64_t layer = 0; layer < block.repeat; ++layer) {
      for (const ChainItem& item : block.items) {
        const bool common = item.compute_ps.size() == 1;
        for (std::size_t rank = 0; rank < n; ++rank, ++parent) {
          if (!item.compute_ps.empty()) {
            builder.compute(group[rank], item.compute_ps[common ? 0 : rank], {&parent, 1});
          } else {
            builder.collective(group[rank], item.site, calls, item.bytes, {&parent, 1});
          }
        }
        if (item.compute_ps.empty()) ++calls;
      }
    }
  }
  return builder.build();
}

void expanded_ends(const Chain& chain, std::span<const Ps> starts_ps, std::span<Ps> ends_ps) {
  const auto graph = expand(chain, starts_ps);
  Engine engine(chain.sites[0].topology, chain.sites[0].options);
  const GraphId id = engine.submit(graph, 0);
  engine.run();
  const std::span<const Ps> end = engine.times(id).end_ps;
  std::copy(end.end() - static_cast<std::ptrdiff_t>(ends_ps.size()), end.end(), ends_ps.begin());
}

}  // namespace astra_sim::engine
