#include "formats/config/system.h"

#include <charconv>

#include "formats/text/fields.h"
#include "formats/text/nearest.h"
#include "formats/text/yaml.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

using model::InputError;

constexpr std::array<std::string_view, 28> kKnown = {"scheduling-policy",
                                                     "collective-optimization",
                                                     "preferred-dataset-splits",
                                                     "active-chunks-per-dimension",
                                                     "endpoint-delay",
                                                     "local-mem-bw",
                                                     "peak-perf",
                                                     "roofline-enabled",
                                                     "all-reduce-implementation",
                                                     "all-gather-implementation",
                                                     "reduce-scatter-implementation",
                                                     "all-to-all-implementation",
                                                     "all-reduce-implementation-custom",
                                                     "all-gather-implementation-custom",
                                                     "reduce-scatter-implementation-custom",
                                                     "all-to-all-implementation-custom",
                                                     "per-node-custom-implementation",
                                                     "local-reduction-delay",
                                                     "model-shared-bus",
                                                     "L",
                                                     "o",
                                                     "g",
                                                     "G",
                                                     "trace-enabled",
                                                     "replay-only",
                                                     "track-local-mem",
                                                     "local-mem-trace-filename",
                                                     "boost-mode"};
constexpr std::array<std::string_view, 3> kIgnored = {"boost-mode", "intra-dimension-scheduling",
                                                      "inter-dimension-scheduling"};

AlgorithmChoice parse_algorithm(const Fields& fields, const std::string& key,
                                const std::string& word) {
  if (const auto choice = model::parse_algorithm(word)) return *choice;
  const std::vector<std::string> words = model::algorithm_words();
  fields.fail(key, "names the algorithm \"" + word + "\"; " + model::expected_algorithms() +
                       " was expected" +
                       nearest(word, std::vector<std::string_view>(words.begin(), words.end())));
}

void read_algorithms(const Fields& fields, SystemConfig& config) {
  for (std::size_t kind = 0; kind < kCollectives; ++kind) {
    const std::string key = std::string(kCollectiveKeys[kind]) + "-implementation";
    for (const std::string& word : fields.texts(key).value_or(std::vector<std::string>{})) {
      config.algorithms[kind].push_back(parse_algorithm(fields, key, word));
    }
    const std::string custom_key = key + "-custom";
    if (const auto prefixes = fields.texts(custom_key)) {
      if (prefixes->size() != 1)
        fields.fail(custom_key, "has to list exactly one prefix of .et files");
      config.custom[kind] = prefixes->front();
    }
  }
}

void read_custom_by_node(const std::string& path, SystemConfig& config) {
  for (const YamlEntry& entry :
       parse_yaml(read_text(path, "a YAML file of node id: prefix"), path)) {
    std::uint64_t id = 0;
    const char* end = entry.key.data() + entry.key.size();
    const auto result = std::from_chars(entry.key.data(), end, id);
    if (result.ec != std::errc() || result.ptr != end || entry.values.size() != 1) {
      throw InputError(path + ":" + std::to_string(entry.line) +
                       ": expected \"node id: prefix\", found \"" + entry.key + "\"");
    }
    config.custom_by_node[id] = entry.values[0];
  }
}

void read_costs(const Fields& fields, SystemConfig& config) {
  config.endpoint_delay_ns = fields.integer("endpoint-delay", 0).value_or(10);
  config.local_memory_gb_per_s = fields.real("local-mem-bw").value_or(0);
  config.peak_tflops = fields.real("peak-perf").value_or(0);
  config.roofline = fields.flag("roofline-enabled").value_or(false);
  if (config.roofline && (config.local_memory_gb_per_s == 0 || config.peak_tflops == 0)) {
    throw InputError(
        config.path +
        ": roofline-enabled needs peak-perf (TFLOP/s) and local-mem-bw (GB/s) above 0");
  }
  config.shared_bus = fields.flag("model-shared-bus").value_or(false);
  for (const char* key : {"local-reduction-delay", "L", "o", "g", "G"}) fields.real(key);
}

void note_ignored(const Fields& fields, SystemConfig& config) {
  for (const std::string_view key : kIgnored) {
    if (fields.has(key))
      config.notes.push_back(config.path + ": \"" + std::string(key) +
                             "\" has no effect, as upstream");
  }
  if (!fields.has("local-mem-bw")) {
    config.notes.push_back(config.path +
                           ": no local-mem-bw, so reductions in collectives take no time");
  }
}

}  // namespace

SystemConfig read_system(const std::string& path) {
  SystemConfig config;
  config.path = path;
  const Json json = read_json(path);
  const Fields fields(path, json);
  constexpr std::array<std::string_view, 3> policies = {"LIFO", "FIFO", "EXPLICIT"};
  constexpr std::array<std::string_view, 2> optimizations = {"baseline", "localBWAware"};
  config.scheduling =
      static_cast<Scheduling>(fields.choice("scheduling-policy", policies).value_or(0));
  const auto optimization = fields.choice("collective-optimization", optimizations);
  config.local_bandwidth_aware = optimization == 1u;
  config.baseline = optimization == 0u;
  config.dataset_splits = fields.integer("preferred-dataset-splits", 1).value_or(0);
  config.active_chunks = fields.integer("active-chunks-per-dimension", 1).value_or(1);
  read_costs(fields, config);
  read_algorithms(fields, config);
  config.replay_only = fields.flag("replay-only").value_or(false);
  config.trace_enabled = fields.flag("trace-enabled").value_or(false);
  config.track_local_memory = fields.flag("track-local-mem").value_or(false);
  config.local_memory_trace = fields.text("local-mem-trace-filename").value_or("local_mem_trace");
  if (const auto custom = fields.text("per-node-custom-implementation"))
    read_custom_by_node(*custom, config);
  std::vector<std::string_view> known(kKnown.begin(), kKnown.end());
  known.insert(known.end(), kIgnored.begin(), kIgnored.end());
  fields.note_unknown(known, config.notes);
  note_ignored(fields, config);
  return config;
}

}  // namespace astra_sim::config
