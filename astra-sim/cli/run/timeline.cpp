#include "cli/run/timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "cli/text_file.h"
#include "formats/chakra/protobuf/reader.h"
#include "formats/text/json.h"

namespace astra_sim::cli {

namespace {

constexpr std::array<const char*, 4> kTracks = {"compute", "communication", "memory", "CPU"};
constexpr std::uint32_t kPerKind = 1000;  // tracks of one kind at most; the rest share the last

std::size_t track_of(const NodeRecord& node) {
  if (node.on_cpu) return 3;
  if (node.type == chakra::NodeType::kMemLoad || node.type == chakra::NodeType::kMemStore) return 2;
  return node.type >= chakra::NodeType::kCommSend ? 1 : 0;
}

class Timeline {
 public:
  Timeline(const std::string& path, const Report& report, const std::string& prefix)
      : report_(report), prefix_(prefix), file_(path) {}

  void write() {
    put("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
    for (std::uint32_t npu = 0; npu + 1 < report_.first.size(); ++npu) write_npu(npu);
    put("\n]}\n");
    file_.close();
  }

 private:
  void put(const std::string& text) { file_.put(text); }
  void event(const std::string& text) {
    put((first_ ? "\n" : ",\n") + text);
    first_ = false;
  }

  void name(const char* what, std::uint32_t npu, std::uint32_t track, const std::string& name) {
    event("{\"ph\": \"M\", \"name\": \"" + std::string(what) +
          "\", \"pid\": " + std::to_string(npu) + ", \"tid\": " + std::to_string(track) +
          ", \"args\": {\"name\": " + config::quoted(name) + "}}");
  }

  std::unordered_map<std::uint64_t, std::string> names_of(std::uint32_t npu) const {
    std::unordered_map<std::uint64_t, std::string> names;
    chakra::Reader reader(prefix_ + "." + std::to_string(npu) + ".et");
    chakra::Node node;
    while (reader.next(node)) names[node.id] = node.name;
    return names;
  }

  void write_npu(std::uint32_t npu) {
    name("process_name", npu, 0, "NPU " + std::to_string(npu));
    const auto names = names_of(npu);
    std::vector<std::uint32_t> order;
    for (std::uint32_t at = report_.first[npu]; at < report_.first[npu + 1]; ++at) {
      if (report_.nodes[at].done >= 0) order.push_back(at);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return report_.nodes[a].issued < report_.nodes[b].issued;
    });
    std::array<std::vector<std::int64_t>, kTracks.size()> free_at;  // by track of a kind
    for (const std::uint32_t at : order) {
      const NodeRecord& node = report_.nodes[at];
      const std::size_t kind = track_of(node);
      std::vector<std::int64_t>& tracks = free_at[kind];
      auto track = static_cast<std::uint32_t>(
          std::find_if(tracks.begin(), tracks.end(), [&](auto end) { return end <= node.issued; }) -
          tracks.begin());
      track = std::min(track, kPerKind - 1);
      const std::uint32_t id = static_cast<std::uint32_t>(kind) * kPerKind + track + 1;
      if (track == tracks.size()) {
        tracks.push_back(0);
        name("thread_name", npu, id,
             std::string(kTracks[kind]) + (track == 0 ? "" : " " + std::to_string(track + 1)));
      }
      tracks[track] = std::max(tracks[track], node.done);
      const auto found = names.find(node.id);
      write_node(npu, id, node, found == names.end() ? "" : found->second);
    }
  }

  void write_node(std::uint32_t npu, std::uint32_t track, const NodeRecord& node,
                  const std::string& text) {
    const std::string type(chakra::kNodeTypeNames[static_cast<std::size_t>(node.type)]);
    event("{\"ph\": \"X\", \"name\": " + config::quoted(text.empty() ? type : text) +
          ", \"cat\": \"" + type + "\", \"pid\": " + std::to_string(npu) +
          ", \"tid\": " + std::to_string(track) + ", \"ts\": " + report_.as_micros(node.issued) +
          ", \"dur\": " + report_.as_micros(node.done - node.issued) + ", \"args\": {\"node\": " +
          std::to_string(node.id) + ", \"bytes\": " + std::to_string(node.bytes) + "}}");
  }

  const Report& report_;
  const std::string& prefix_;
  TextFile file_;
  bool first_ = true;
};

}  // namespace

void write_timeline(const std::string& path, const Report& report, const std::string& prefix) {
  Timeline(path, report, prefix).write();
}

}  // namespace astra_sim::cli
