#include "strict/base/trace.h"

#include <algorithm>
#include <utility>

#include "formats/chakra/protobuf/reader.h"
#include "model/base/input_error.h"

namespace astra_sim::strict {

namespace {

using model::InputError;

// One file while it is read: nodes in the order of the file, and their parents one after another.
struct Staging {
  std::vector<TraceNode> nodes;
  std::vector<std::uint64_t> parents;
  std::vector<std::uint32_t> first_parent;
};

TraceNode trace_node(const chakra::NodeFields& fields) {
  TraceNode node;
  node.id = fields.id;
  node.duration_ns =
      fields.duration_micros == 0 ? 1 : static_cast<Ns>(fields.duration_micros) * 1000;
  node.bytes = fields.bytes;
  node.operations = fields.operations;
  node.peer = fields.peer;
  node.tag = fields.tag;
  node.group = fields.group;
  node.dimensions = fields.dimensions;
  node.type = fields.type;
  node.collective = fields.collective;
  node.on_cpu = fields.on_cpu;
  return node;
}

class Loader {
 public:
  Loader(const std::string& path, Trace& trace)
      : path_(path), trace_(trace), base_(static_cast<std::uint32_t>(trace.nodes.size())) {}

  void read(std::uint32_t rank, const chakra::FieldRules& rules) {
    chakra::Reader reader(path_);
    chakra::Node node;
    while (reader.next(node)) {
      staging_.nodes.push_back(trace_node(chakra::read_fields(node, path_, rank, rules)));
      staging_.first_parent.push_back(static_cast<std::uint32_t>(staging_.parents.size()));
      const std::size_t first = staging_.parents.size();
      staging_.parents.insert(staging_.parents.end(), node.data_deps.begin(), node.data_deps.end());
      staging_.parents.insert(staging_.parents.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
      if (staging_.parents.size() - first > 1) drop_repeated(first);
    }
    staging_.first_parent.push_back(static_cast<std::uint32_t>(staging_.parents.size()));
  }

  void place() {
    order();
    for (const std::uint32_t from : order_) trace_.nodes.push_back(staging_.nodes[from]);
    count_ = static_cast<std::uint32_t>(order_.size());
    std::vector<std::uint32_t> edges;  // parent index of each edge, in the order of the children
    bool root = false;
    for (std::uint32_t at = 0; at < count_; ++at) {
      const std::uint32_t from = order_[at];
      TraceNode& node = trace_.nodes[base_ + at];
      for (std::uint32_t k = staging_.first_parent[from]; k < staging_.first_parent[from + 1];
           ++k) {
        const std::uint32_t parent = find(staging_.parents[k]);
        if (parent == kNone) {
          throw InputError(path_ + ": node " + std::to_string(node.id) + " depends on node " +
                           std::to_string(staging_.parents[k]) + ", which is not in the file");
        }
        edges.push_back(parent);
        ++trace_.nodes[parent].child_count;
        ++node.parents_left;
      }
      root |= node.parents_left == 0;
    }
    if (!root) {
      throw InputError(
          path_ + (count_ == 0 ? " has no nodes; one at least was expected"
                               : ": every node depends on another (a cycle), so none can start"));
    }
    link(edges);
  }

  // Needs place().
  void note_file_order() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places;  // (record, node)
    for (std::uint32_t at = 0; at < count_; ++at) places.emplace_back(order_[at], base_ + at);
    std::sort(places.begin(), places.end());
    for (const auto& [record, node] : places) trace_.order.push_back(node);
  }

 private:
  void drop_repeated(std::size_t first) {
    const auto begin = staging_.parents.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, staging_.parents.end());
    staging_.parents.erase(std::unique(begin, staging_.parents.end()), staging_.parents.end());
  }

  // Ascending ids; of a repeated id the last record wins.
  void order() {
    const auto& nodes = staging_.nodes;
    order_.resize(nodes.size());
    for (std::uint32_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const auto by_id = [&](std::uint32_t a, std::uint32_t b) { return nodes[a].id < nodes[b].id; };
    bool strictly = true;
    for (std::size_t i = 1; i < nodes.size() && strictly; ++i)
      strictly = nodes[i - 1].id < nodes[i].id;
    if (strictly) return;
    std::stable_sort(order_.begin(), order_.end(), by_id);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i + 1 < order_.size() && nodes[order_[i]].id == nodes[order_[i + 1]].id) continue;
      order_[kept++] = order_[i];
    }
    order_.resize(kept);
  }

  std::uint32_t find(std::uint64_t id) const {
    const TraceNode* nodes = trace_.nodes.data() + base_;
    const std::uint64_t guess = id - nodes[0].id;  // ids without gaps need no search
    if (guess < count_ && nodes[guess].id == id) return base_ + static_cast<std::uint32_t>(guess);
    const TraceNode* found = std::lower_bound(
        nodes, nodes + count_, id,
        [](const TraceNode& node, std::uint64_t value) { return node.id < value; });
    return found == nodes + count_ || found->id != id
               ? kNone
               : base_ + static_cast<std::uint32_t>(found - nodes);
  }

  void link(const std::vector<std::uint32_t>& edges) {
    auto next = static_cast<std::uint32_t>(trace_.children.size());
    for (std::uint32_t at = base_; at < base_ + count_; ++at) {
      trace_.nodes[at].first_child = next;
      next += trace_.nodes[at].child_count;
      trace_.nodes[at].child_count = 0;
    }
    trace_.children.resize(next);
    std::size_t edge = 0;
    for (std::uint32_t at = base_; at < base_ + count_; ++at) {
      for (std::uint32_t k = 0; k < trace_.nodes[at].parents_left; ++k, ++edge) {
        TraceNode& parent = trace_.nodes[edges[edge]];
        trace_.children[parent.first_child + parent.child_count++] = at;
      }
    }
  }

  const std::string& path_;
  Trace& trace_;
  std::uint32_t base_;
  std::uint32_t count_ = 0;
  Staging staging_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

void load_trace(const std::string& path, std::uint32_t rank, const chakra::FieldRules& rules,
                Trace& trace) {
  if (trace.first.empty()) trace.first.push_back(0);
  Loader loader(path, trace);
  loader.read(rank, rules);
  loader.place();
  if (rules.custom) loader.note_file_order();
  if (trace.nodes.size() >= kNone / 2)
    throw InputError(path + ": more than 2^31 nodes in all are too many");
  trace.first.push_back(static_cast<std::uint32_t>(trace.nodes.size()));
}

}  // namespace astra_sim::strict
