#include "cli/upstream/lines.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <vector>

#include "cli/run/node_log.h"
#include "cli/run/statistics.h"
#include "strict/base/hash_order.h"

namespace astra_sim::cli {

namespace {

using strict::Happening;

std::string in_units(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", amount, kUnits[unit]);
  return text;
}

class Lines {
 public:
  Lines(const Report& report, const Files& files, const std::string& prefix,
        const std::function<void(const LogLine&)>& put)
      : report_(report), files_(files), put_(put) {
    const auto& entries = report.journal.entries;
    const bool named = std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.what == Happening::kEnded || files.system.trace_enabled;
    });
    if (named) names_ = names_of(report, prefix);
    issued_.resize(report.finish.size());
    for (const strict::JournalEntry& entry : entries) {
      if (entry.what == Happening::kIssued) issued_[npu_of(entry.index)].push_back(entry.index);
    }
  }

  void put_all() {
    rings_of_node_0();
    for (const strict::JournalEntry& entry : report_.journal.entries) put_entry(entry);
    for (std::uint32_t npu = 0; npu < issued_.size(); ++npu) unreleased(npu);
    put_({"system", Level::kWarning, "Exiting"});
  }

 private:
  std::uint32_t npu_of(std::uint32_t node) const {
    const auto after = std::upper_bound(report_.first.begin(), report_.first.end(), node);
    return static_cast<std::uint32_t>(after - report_.first.begin()) - 1;
  }

  // NPU 0 tells of each ring that it has in a dimension, kind by kind; double trees are none.
  void rings_of_node_0() {
    using config::Collective;
    for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                  Collective::kAllGather, Collective::kAllToAll}) {
      const auto& given = files_.system.algorithms[static_cast<std::size_t>(kind)];
      std::uint32_t offset = 1;
      for (std::size_t d = 0; d < std::min(given.size(), files_.network.dimensions.size()); ++d) {
        if (given[d].flat) {
          ring_of_node_0(files_.network.npus(), 1);
          break;
        }
        const std::uint32_t npus = files_.network.dimensions[d].npus;
        if (given[d].algorithm != config::Algorithm::kDoubleBinaryTree)
          ring_of_node_0(npus, offset);
        offset *= npus;
      }
    }
  }

  void ring_of_node_0(std::uint32_t npus, std::uint32_t offset) {
    const std::string total = std::to_string(npus);
    put_({"system::topology::RingTopology", Level::kInfo,
          "ring of node 0, id: 0 dimension: local total nodes in ring: " + total +
              " index in ring: 0 offset: " + std::to_string(offset) +
              " total nodes in ring: " + total});
  }

  void put_entry(const strict::JournalEntry& entry) {
    switch (entry.what) {
      case Happening::kIssued:
        if (files_.system.trace_enabled) node_line("issue", entry);
        return;
      case Happening::kEnded:
        return node_line("callback", entry);
      case Happening::kRing:
        return group_ring(report_.journal.rings[entry.index]);
      case Happening::kFinished:
        return finished(entry.index);
    }
  }

  void node_line(const char* what, const strict::JournalEntry& entry) {
    const NodeRecord& node = report_.nodes[entry.index];
    put_({"workload", Level::kDebug,
          std::string(what) + ",sys->id=" + std::to_string(npu_of(entry.index)) +
              ", tick=" + std::to_string(entry.tick) + ", node->id=" + std::to_string(node.id) +
              ", node->name=" + names_[entry.index] +
              ", node->type=" + std::to_string(static_cast<int>(node.type))});
  }

  void group_ring(const strict::GroupRing& ring) {
    const std::string total = std::to_string(ring.size);
    put_({"system::topology::RingTopology", Level::kInfo,
          "custom ring, id: " + std::to_string(ring.npu) +
              ", dimension: local total nodes in ring: " + total +
              " index in ring: " + std::to_string(ring.place) + " total nodes in ring " + total});
  }

  void finished(std::uint32_t npu) {
    const Statistics one = statistics(report_, npu, files_.system);
    const std::string name = "sys[" + std::to_string(npu) + "]";
    put_({"workload", Level::kInfo,
          name + " finished, " + std::to_string(one.wall) + " cycles, exposed communication " +
              std::to_string(one.exposed_comm) + " cycles."});
    put_({"statistics", Level::kInfo, name + ". Post statistics processing start."});
    put_({"statistics", Level::kInfo, name + ". Post statistics processing end."});
    std::vector<Figure> figures = figures_of(report_, one);
    if (one.computes && one.communicates && communication_first(npu)) {
      const auto is = [](const char* label) {
        return [label](const Figure& figure) { return std::string_view(figure.first) == label; };
      };
      std::iter_swap(std::find_if(figures.begin(), figures.end(), is("GPU time")),
                     std::find_if(figures.begin(), figures.end(), is("Comm time")));
    }
    for (const auto& [label, value] : figures)
      put_({"statistics", Level::kInfo, name + ", " + label + ": " + value});
    if (report_.peak_bytes.empty()) return;
    put_({"workload", Level::kInfo,
          name + " peak memory usage: " + in_units(report_.peak_bytes[npu])});
  }

  // Upstream walks a hash table of the nodes, entered as they were issued, and tells of compute and
  // communication in the order in which it meets them.
  bool communication_first(std::uint32_t npu) const {
    strict::HashOrder table;
    for (const std::uint32_t node : issued_[npu]) table.insert(report_.nodes[node].id);
    for (const std::uint32_t at : table.take()) {
      const NodeRecord& node = report_.nodes[issued_[npu][at]];
      if (node.on_cpu) continue;
      if (node.type == chakra::NodeType::kComp) return false;
      if (node.type >= chakra::NodeType::kCommSend) return true;
    }
    return false;
  }

  // Nodes that hold a slot at the end.
  void unreleased(std::uint32_t npu) {
    bool told = false;
    for (const std::uint32_t at : issued_[npu]) {
      const NodeRecord& node = report_.nodes[at];
      if (node.done >= 0 || node.type == chakra::NodeType::kCommRecv) continue;
      const char* slot = node.type == chakra::NodeType::kComp ? "GPU comp" : "GPU comm";
      if (node.on_cpu) slot = "CPU";
      if (!std::exchange(told, true)) {
        put_({"HardwareResource", Level::kCritical,
              "!!!Hardware Resource sys.id=" + std::to_string(npu) + " has unreleased nodes!!!"});
      }
      put_({"HardwareResource", Level::kCritical,
            std::string(slot) + " node id: " + std::to_string(node.id)});
    }
  }

  const Report& report_;
  const Files& files_;
  const std::function<void(const LogLine&)>& put_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::uint32_t>> issued_;  // nodes per NPU, in the order of their issue
};

}  // namespace

void each_line(const Report& report, const Files& files, const std::string& prefix,
               const std::function<void(const LogLine&)>& put) {
  Lines(report, files, prefix, put).put_all();
}

}  // namespace astra_sim::cli
