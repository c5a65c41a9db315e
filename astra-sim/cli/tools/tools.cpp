#include "cli/tools/tools.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/tools/generate.h"
#include "cli/tools/validate.h"
#include "formats/chakra/json/from_json.h"
#include "formats/chakra/json/graph_text.h"
#include "formats/chakra/json/to_json.h"
#include "formats/chakra/protobuf/reader.h"
#include "formats/chakra/protobuf/writer.h"
#include "formats/chakra/wire.h"
#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

using model::InputError;
using Arguments = std::vector<std::string>;

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// A list in the file may still be damaged inside: it is decoded only here.
template <class Record>
std::string json_of(const Record& record, const std::string& path) {
  try {
    return chakra::to_json(record);
  } catch (const chakra::WireError& error) {
    throw InputError(path + " holds an attribute that cannot be read: " + error.what());
  }
}

int to_json(const Arguments& arguments) {
  chakra::Reader reader(arguments[0]);
  print("[" + json_of(reader.metadata(), arguments[0]));
  chakra::Node node;
  while (reader.next(node)) print(",\n " + json_of(node, arguments[0]));
  print("]\n");
  return 0;
}

bool is_gzip_name(const std::string& path) { return path.ends_with(".gz"); }

void must_differ(const Arguments& arguments) {
  std::error_code absent;  // then they differ
  if (arguments[0] == arguments[1] ||
      std::filesystem::equivalent(arguments[0], arguments[1], absent)) {
    throw InputError(arguments[1] + " cannot be written while it is read");
  }
}

int from_json(const Arguments& arguments) {
  must_differ(arguments);
  chakra::JsonElements elements(arguments[0]);
  chakra::OwnNode node;
  chakra::Metadata metadata;
  metadata.version = "0.0.4";
  config::Json element;
  bool more = elements.next(element);
  if (more && !chakra::is_node(element)) {
    metadata.version = {};
    chakra::metadata_from_json(element, elements.place(), node, metadata);
    more = false;
  }
  chakra::Writer writer(arguments[1], metadata, is_gzip_name(arguments[1]));
  for (; more || elements.next(element); more = false) {
    chakra::from_json(element, elements.place(), node);
    writer.write(node.node);
  }
  writer.close();
  return 0;
}

int copy(const Arguments& arguments) {
  must_differ(arguments);
  chakra::Reader reader(arguments[0]);
  chakra::Writer writer(arguments[1], reader.metadata(), is_gzip_name(arguments[1]));
  chakra::Node node;
  while (reader.next(node)) writer.write(node);
  writer.close();
  return 0;
}

template <class Format>
int as_graph(const Arguments& arguments) {
  chakra::Reader reader(arguments[0]);
  print(Format::begin(arguments[0]));
  chakra::Node node;
  while (reader.next(node)) print(Format::node(node));
  print(Format::end());
  return 0;
}

int check(const Arguments& arguments) {
  int exit_code = 0;
  for (const std::string& path : arguments) {
    const Verdict verdict = validate(path);
    for (const std::string& problem : verdict.problems)
      std::fprintf(stderr, "error: %s\n", problem.c_str());
    if (!verdict.problems.empty()) {
      exit_code = 2;
      continue;
    }
    print(path + ": " + std::to_string(verdict.nodes) + " nodes, " +
          std::to_string(verdict.dependencies) + " dependencies, no problems\n");
  }
  return exit_code;
}

std::uint64_t number(const std::string& name, const std::string& text, std::uint64_t low,
                     std::uint64_t high) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || value < low ||
      value > high) {
    throw InputError("generate: --" + name + " is \"" + text + "\"; " + std::to_string(low) +
                     " to " + std::to_string(high) + " was expected");
  }
  return value;
}

int make(const Arguments& arguments) {
  Microbenchmark benchmark;
  benchmark.kind = arguments[0];
  for (std::size_t at = 1; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
    if (name == "--npus") {
      benchmark.npus = static_cast<std::uint32_t>(number("npus", value, 1, 1U << 20));
    } else if (name == "--size") {
      benchmark.bytes = number("size", value, 0, kMost);
    } else if (name == "--count") {
      benchmark.count = number("count", value, 1, 1U << 30);
    } else if (name == "--compute-micros") {
      benchmark.micros = number("compute-micros", value, 0, kMost);
    } else if (name == "--group") {
      benchmark.group = static_cast<std::uint32_t>(number("group", value, 0, 1U << 30));
    } else if (name == "--gzip") {
      benchmark.gzip = true;
    } else if (name == "--output") {
      benchmark.prefix = value;
    } else {
      throw InputError(
          "generate: \"" + argument +
          "\" is not known; --npus, --size, --count, --compute-micros, --group, --gzip and "
          "--output are");
    }
  }
  if (benchmark.npus == 0) throw InputError("generate: --npus=N is missing");
  if (benchmark.prefix.empty())
    throw InputError("generate: --output=PREFIX is missing; it writes PREFIX.<npu>.et");
  generate(benchmark);
  return 0;
}

struct Tool {
  std::string_view name;
  const char* arguments;
  std::size_t least;
  std::size_t most;
  int (*run)(const Arguments&);
  const char* help;
};

constexpr std::size_t kAny = 1 << 20;
constexpr std::array<Tool, 7> kTools = {{
    {"to-json", "FILE.et", 1, 1, to_json, "the trace as a JSON array: metadata, then the nodes"},
    {"from-json", "FILE.json TO.et", 2, 2, from_json,
     "the way back; objects one after another are read too"},
    {"copy", "FROM.et TO.et", 2, 2, copy,
     "reads a trace and writes it again; TO.gz is gzip, else plain"},
    {"dot", "FILE.et", 1, 1, as_graph<chakra::Dot>, "the dependencies for graphviz"},
    {"graphml", "FILE.et", 1, 1, as_graph<chakra::GraphMl>,
     "the dependencies for yEd, Gephi, networkx"},
    {"validate", "FILE.et...", 1, kAny, check,
     "absent parents, cycles, repeated ids, wrong attributes"},
    {"generate",
     "KIND --npus=N --output=PREFIX [--size=BYTES] [--count=N] [--compute-micros=N] [--group=ID] "
     "[--gzip]",
     1, kAny, make, "a microbenchmark: PREFIX.<npu>.et for every NPU"},
}};

}  // namespace

bool run_tool(const std::vector<std::string>& arguments, int& exit_code) {
  if (arguments.empty() || arguments[0].starts_with("-")) return false;
  const auto tool = std::find_if(kTools.begin(), kTools.end(),
                                 [&](const Tool& one) { return one.name == arguments[0]; });
  if (tool == kTools.end()) {
    std::vector<std::string_view> names;
    for (const Tool& one : kTools) names.push_back(one.name);
    throw InputError("\"" + arguments[0] + "\" is neither an option nor a tool" +
                     config::nearest(arguments[0], names) + "; --help lists both");
  }
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (rest.size() < tool->least || rest.size() > tool->most) {
    throw InputError("usage: astra-sim " + std::string(tool->name) + " " + tool->arguments);
  }
  exit_code = tool->run(rest);
  return true;
}

std::string tools_usage() {
  std::string text = "\nTools:\n";
  for (const Tool& tool : kTools) {
    text += "  astra-sim " + std::string(tool.name) + " " + tool.arguments + "\n      " +
            tool.help + "\n";
  }
  return text + "      KIND: " + microbenchmark_kinds() + "\n";
}

}  // namespace astra_sim::cli
