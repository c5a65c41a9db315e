#include "cli/tools/tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/text_file.h"
#include "formats/chakra/node_fields.h"
#include "formats/chakra/protobuf/reader.h"
#include "formats/text/json.h"

namespace astra_sim::cli {

namespace {

constexpr std::array<const char*, 2> kUses = {"inputs", "outputs"};
constexpr std::array<const char*, 2> kTensorTracks = {"reads", "writes"};
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // of all tensors of an NPU together

struct Tensor {
  std::int64_t bytes = 0;
  std::int64_t from = std::numeric_limits<std::int64_t>::max();
  std::int64_t to = -1;
};

using Named = std::vector<std::pair<std::string, std::int64_t>>;

Named tensors_of(const chakra::Node& node, const char* use, const std::string& path, bool strict) {
  Named named;
  const chakra::Attribute* attribute = node.find(use);
  const auto fail = [&](const std::string& what) {
    throw model::InputError(chakra::place_of(node, path) + "attribute " + use + " " + what);
  };
  if (attribute == nullptr) {
    if (strict) fail("is missing, and track-local-mem needs it");
    return named;
  }
  const auto texts = attribute->string_list();
  if (!texts) fail("is no string_list of tensor, bytes, tensor, bytes, ...");
  if (texts->size() % 2 != 0)
    fail("has an odd number of entries; tensor, bytes, tensor, bytes, ... was expected");
  for (std::size_t i = 0; i < texts->size(); i += 2) {
    const std::string_view text = (*texts)[i + 1];
    std::int64_t bytes = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), bytes);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || bytes < 0 ||
        bytes > kMostBytes) {
      fail("gives \"" + std::string(text) + "\" bytes; a whole number up to 2^60 was expected");
    }
    named.emplace_back((*texts)[i], bytes);
  }
  return named;
}

class Tracker {
 public:
  Tracker(const std::string& path, bool strict, const std::string& prefix, Report& report)
      : strict_(strict), prefix_(prefix), report_(report), file_(path) {}

  void write() {
    file_.put("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
    for (std::uint32_t npu = 0; npu + 1 < report_.first.size(); ++npu) {
      report_.peak_bytes.push_back(write_npu(npu));
    }
    file_.put("\n]}\n");
    file_.close();
  }

 private:
  // Begins an event; its end is the caller's.
  std::string event(const char* phase, std::uint32_t npu, const std::string& name) {
    const std::string head = std::exchange(first_, false) ? "\n" : ",\n";
    return head + "{\"ph\": \"" + phase + "\", \"pid\": " + std::to_string(npu) +
           ", \"name\": " + config::quoted(name);
  }

  std::int64_t write_npu(std::uint32_t npu) {
    file_.put(event("M", npu, "process_name") + ", \"args\": {\"name\": \"NPU " +
              std::to_string(npu) + "\"}}");
    for (std::size_t track = 0; track < kTensorTracks.size(); ++track) {
      file_.put(event("M", npu, "thread_name") + ", \"tid\": " + std::to_string(track + 1) +
                ", \"args\": {\"name\": \"" + kTensorTracks[track] + "\"}}");
    }
    std::unordered_map<std::uint64_t, const NodeRecord*> records;
    for (std::uint32_t at = report_.first[npu]; at < report_.first[npu + 1]; ++at) {
      if (report_.nodes[at].done >= 0) records[report_.nodes[at].id] = &report_.nodes[at];
    }
    std::map<std::string, Tensor> tensors;
    const std::string path = prefix_ + "." + std::to_string(npu) + ".et";
    chakra::Reader reader(path);
    for (chakra::Node node; reader.next(node);) {
      for (std::size_t use = 0; use < kUses.size(); ++use) {
        const Named named = tensors_of(node, kUses[use], path, strict_);
        const auto record = records.find(node.id);
        if (record == records.end()) continue;  // it never ended
        for (const auto& [name, bytes] : named)
          add(npu, use, name, bytes, *record->second, tensors[name]);
      }
    }
    return write_lives(npu, tensors);
  }

  void add(std::uint32_t npu, std::size_t use, const std::string& name, std::int64_t bytes,
           const NodeRecord& node, Tensor& tensor) {
    tensor.bytes = std::max(tensor.bytes, bytes);
    tensor.from = std::min(tensor.from, node.issued);
    tensor.to = std::max(tensor.to, node.done);
    file_.put(event("X", npu, name) + ", \"tid\": " + std::to_string(use + 1) +
              ", \"ts\": " + report_.as_micros(node.issued) +
              ", \"dur\": " + report_.as_micros(node.done - node.issued) +
              ", \"args\": {\"node\": " + std::to_string(node.id) +
              ", \"bytes\": " + std::to_string(bytes) + "}}");
  }

  // Lives as asynchronous slices, and their sum as a counter; returns its peak. What ends makes
  // room first.
  std::int64_t write_lives(std::uint32_t npu, const std::map<std::string, Tensor>& tensors) {
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>>
        changes;  // time -> bytes that go, that come
    std::int64_t all = 0;
    std::uint64_t number = 0;
    for (const auto& [name, tensor] : tensors) {
      if ((all += tensor.bytes) > kMostBytes) {
        throw model::InputError(prefix_ + "." + std::to_string(npu) +
                                ".et: tensors of more than 2^60 bytes");
      }
      changes[tensor.from].second += tensor.bytes;
      changes[tensor.to].first += tensor.bytes;
      const std::string id = ", \"cat\": \"tensor\", \"id\": " + std::to_string(number++);
      file_.put(event("b", npu, name) + id + ", \"ts\": " + report_.as_micros(tensor.from) +
                ", \"args\": {\"bytes\": " + std::to_string(tensor.bytes) + "}}");
      file_.put(event("e", npu, name) + id + ", \"ts\": " + report_.as_micros(tensor.to) + "}");
    }
    std::int64_t there = 0, peak = 0;
    for (const auto& [time, change] : changes) {
      peak = std::max(peak, there += change.second - change.first);
      file_.put(event("C", npu, "memory") + ", \"ts\": " + report_.as_micros(time) +
                ", \"args\": {\"bytes\": " + std::to_string(there) + "}}");
    }
    return peak;
  }

  bool strict_;
  const std::string& prefix_;
  Report& report_;
  TextFile file_;
  bool first_ = true;
};

}  // namespace

std::optional<std::string> write_tensors(const std::string& path, bool strict,
                                         const std::string& prefix, Report& report) {
  const bool bare = std::filesystem::path(path).extension().empty();
  const std::string name = bare ? path + ".json" : path;
  try {
    TextFile(name).close();
  } catch (const model::InputError& error) {
    Tracker("/dev/null", strict, prefix, report).write();
    return std::string(error.what()) +
           "; the run has no trace of its tensors (local-mem-trace-filename names its file)";
  }
  Tracker(name, strict, prefix, report).write();
  return std::nullopt;
}

}  // namespace astra_sim::cli
