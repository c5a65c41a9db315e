#include "cli/tools/generate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "formats/chakra/own_node.h"
#include "formats/chakra/protobuf/writer.h"
#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

using chakra::NodeType;

// In the order of chakra::CollectiveKind; then what is no collective.
constexpr std::array<std::string_view, 12> kKinds = {
    "all-reduce", "reduce",         "all-gather",           "gather",  "scatter",   "broadcast",
    "all-to-all", "reduce-scatter", "reduce-scatter-block", "barrier", "send-recv", "compute"};
constexpr std::size_t kSendReceive = 10;
constexpr std::size_t kCompute = 11;

class Program {
 public:
  Program(const Microbenchmark& benchmark, std::size_t kind, std::uint32_t npu,
          chakra::Writer& writer)
      : benchmark_(benchmark), kind_(kind), npu_(npu), writer_(writer) {}

  void write() {
    for (std::uint64_t at = 0; at < benchmark_.count; ++at) {
      if (benchmark_.micros > 0 || kind_ == kCompute) compute();
      if (kind_ < kSendReceive) {
        collective();
      } else if (kind_ == kSendReceive) {
        exchange(at);
      }
    }
  }

 private:
  void begin(const char* name, NodeType type, std::optional<std::uint64_t> parent) {
    node_.begin(next_++, name, type);
    if (parent) node_.node.data_deps.push_back(*parent);
    node_.set_flag("is_cpu_op", false);
  }
  void finish() {
    writer_.write(node_.node);
    last_ = node_.node.id;
  }

  void compute() {
    begin("compute", NodeType::kComp, last_);
    node_.node.duration_micros = benchmark_.micros;
    finish();
  }

  void collective() {
    begin(std::string(kKinds[kind_]).c_str(), NodeType::kCommColl, last_);
    node_.set("comm_type", kind_);
    node_.set("comm_size", benchmark_.bytes);
    if (benchmark_.group != 0) node_.set_text("pg_name", std::to_string(benchmark_.group));
    finish();
  }

  // Every NPU sends to the next one and receives from the one before it.
  void exchange(std::uint64_t round) {
    const std::uint32_t n = benchmark_.npus;
    const auto parent = last_;
    begin("recv", NodeType::kCommRecv, parent);
    message("comm_src", (npu_ + n - 1) % n, round);
    begin("send", NodeType::kCommSend, parent);
    message("comm_dst", (npu_ + 1) % n, round);
    const std::uint64_t send = node_.node.id;
    begin("both", NodeType::kComp, send - 1);
    node_.node.data_deps.push_back(send);
    finish();
  }
  void message(const char* end, std::uint32_t peer, std::uint64_t round) {
    node_.set(end, peer);
    node_.set("comm_size", benchmark_.bytes);
    node_.set("comm_tag", round);
    finish();
  }

  const Microbenchmark& benchmark_;
  std::size_t kind_;
  std::uint32_t npu_;
  chakra::Writer& writer_;
  chakra::OwnNode node_;
  std::uint64_t next_ = 1;
  std::optional<std::uint64_t> last_;
};

}  // namespace

std::string microbenchmark_kinds() {
  std::string text;
  for (const std::string_view kind : kKinds) text.append(text.empty() ? "" : ", ").append(kind);
  return text;
}

void generate(const Microbenchmark& benchmark) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), benchmark.kind);
  if (found == kKinds.end()) {
    throw model::InputError("generate: \"" + benchmark.kind + "\" is no kind; one of " +
                            microbenchmark_kinds() + " was expected" +
                            config::nearest(benchmark.kind, kKinds));
  }
  const auto kind = static_cast<std::size_t>(found - kKinds.begin());
  if (kind == kSendReceive && benchmark.npus < 2) {
    throw model::InputError("generate: send-recv needs two NPUs at least");
  }
  chakra::Metadata metadata;
  metadata.version = "0.0.4";
  for (std::uint32_t npu = 0; npu < benchmark.npus; ++npu) {
    const std::string path = benchmark.prefix + "." + std::to_string(npu) + ".et";
    chakra::Writer writer(path, metadata, benchmark.gzip);
    Program(benchmark, kind, npu, writer).write();
    writer.close();
  }
}

}  // namespace astra_sim::cli
