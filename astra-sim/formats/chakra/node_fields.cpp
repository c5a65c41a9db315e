#include "formats/chakra/node_fields.h"

#include <array>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "formats/chakra/wire.h"
#include "model/base/input_error.h"

namespace astra_sim::chakra {

namespace {

using model::InputError;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;
constexpr std::uint64_t kMaxMicros = std::uint64_t{1}
                                     << 50;  // 35 years; times stay far below 2^63 ns
constexpr std::uint32_t kTagModulus = 500'000'000;

// What engine_stream may name.
constexpr std::array<std::pair<std::string_view, model::Stream>, 5> kStreams = {
    {{"compute", model::Stream::kCompute},
     {"copy_in", model::Stream::kCopyIn},
     {"copy_out", model::Stream::kCopyOut},
     {"pim", model::Stream::kPim},
     {"host", model::Stream::kHost}}};

// The attributes that matter, each the first of its name.
struct Found {
  const Attribute* is_cpu_op = nullptr;
  const Attribute* num_ops = nullptr;
  const Attribute* tensor_size = nullptr;
  const Attribute* comm_type = nullptr;
  const Attribute* comm_size = nullptr;
  const Attribute* comm_src = nullptr;
  const Attribute* comm_dst = nullptr;
  const Attribute* comm_tag = nullptr;
  const Attribute* pg_name = nullptr;
  const Attribute* involved_dim = nullptr;
  const Attribute* duration_ps = nullptr;
  const Attribute* root_rank = nullptr;
  const Attribute* memory_tier = nullptr;
  const Attribute* engine_stream = nullptr;
};

// Names are told apart by their lengths first: there are many attributes, and few that matter.
Found find_all(const Node& node) {
  Found found;
  for (const Attribute& attribute : node.attributes) {
    const auto keep = [&](std::string_view name, const Attribute*& slot) {
      if (slot == nullptr && attribute.name == name) slot = &attribute;
    };
    switch (attribute.name.size()) {
      case 7:
        keep("num_ops", found.num_ops);
        keep("pg_name", found.pg_name);
        break;
      case 8:
        keep("comm_src", found.comm_src);
        keep("comm_dst", found.comm_dst);
        keep("comm_tag", found.comm_tag);
        break;
      case 9:
        keep("is_cpu_op", found.is_cpu_op);
        keep("comm_size", found.comm_size);
        keep("comm_type", found.comm_type);
        keep("root_rank", found.root_rank);
        break;
      case 11:
        keep("tensor_size", found.tensor_size);
        keep("duration_ps", found.duration_ps);
        keep("memory_tier", found.memory_tier);
        break;
      case 12:
        keep("involved_dim", found.involved_dim);
        break;
      case 13:
        keep("engine_stream", found.engine_stream);
        break;
      default:
        break;
    }
  }
  return found;
}

class FieldReader {
 public:
  FieldReader(const Node& node, const std::string& path, std::uint32_t rank,
              const FieldRules& rules)
      : node_(node), path_(path), rank_(rank), rules_(rules), found_(find_all(node)) {}

  NodeFields read() {
    out_.id = node_.id;
    out_.type = node_.type;
    if (node_.duration_micros > kMaxMicros)
      fail("duration_micros is " + std::to_string(node_.duration_micros) + "; too long");
    out_.duration_micros = node_.duration_micros;
    if (!rules_.upstream && found_.duration_ps != nullptr) {
      out_.duration_ps = bytes(found_.duration_ps, "duration_ps", "ps");
    }
    if (found_.is_cpu_op != nullptr) out_.on_cpu = number(found_.is_cpu_op, "is_cpu_op") != 0;
    const bool communicates = node_.type >= NodeType::kCommSend;
    const bool only_lasts = rules_.upstream && rules_.replay_only;
    if (out_.on_cpu && communicates && !only_lasts)
      fail("it communicates but is_cpu_op is set; only compute runs on the CPU");
    if (rules_.custom && node_.type != NodeType::kComp && node_.type != NodeType::kCommSend &&
        node_.type != NodeType::kCommRecv) {
      fail("a custom collective is made of COMP, COMM_SEND and COMM_RECV nodes");
    }
    if (!rules_.upstream && found_.engine_stream != nullptr) out_.stream = stream();
    if (!rules_.replay_only) read_costs();
    return out_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(place_of(node_, path_) + what);
  }

  std::uint64_t number(const Attribute* attribute, const char* name) const {
    if (attribute == nullptr) fail(std::string(name) + " is missing");
    const auto value = attribute->unsigned_value();
    if (!value) {
      fail(std::string(name) + " is a " +
           std::string(encoding_name(attribute->encoding, attribute->list)) +
           (attribute->is_integer() ? " below 0" : "") + "; a whole number was expected");
    }
    return *value;
  }

  std::int64_t bytes(const Attribute* attribute, const char* name,
                     const char* unit = "bytes") const {
    const std::uint64_t value = number(attribute, name);
    if (value > kMaxBytes)
      fail(std::string(name) + " is " + std::to_string(value) + "; at most 2^60 " + unit +
           " were expected");
    return static_cast<std::int64_t>(value);
  }

  void read_costs() {
    switch (node_.type) {
      case NodeType::kComp:
        if (!rules_.roofline || out_.on_cpu) return;
        out_.operations = bytes(found_.num_ops, "num_ops");
        out_.bytes = bytes(found_.tensor_size, "tensor_size");
        return;
      case NodeType::kMemLoad:
      case NodeType::kMemStore:
        out_.bytes = bytes(found_.tensor_size, "tensor_size");
        if (!rules_.upstream && found_.memory_tier != nullptr) out_.tier = tier();
        return;
      case NodeType::kCommSend:
        read_message(found_.comm_dst, "comm_dst", found_.comm_src, "comm_src");
        return;
      case NodeType::kCommRecv:
        read_message(found_.comm_src, "comm_src", found_.comm_dst, "comm_dst");
        return;
      case NodeType::kCommColl:
        read_collective();
        return;
      default:
        return;
    }
  }

  void read_message(const Attribute* other, const char* other_name, const Attribute* own,
                    const char* own_name) {
    out_.bytes = bytes(found_.comm_size, "comm_size");
    if (out_.bytes == 0 && rules_.upstream) fail("comm_size is 0; a message has one byte at least");
    const std::uint64_t peer = number(other, other_name);
    if (peer >= rules_.npus) {
      fail(std::string(other_name) + " is " + std::to_string(peer) + "; NPUs are 0 to " +
           std::to_string(rules_.npus - 1));
    }
    if (rules_.any_rank) {
      own = nullptr;
    } else if (peer == rank_) {
      fail(std::string(other_name) + " is " + std::to_string(peer) +
           ", the NPU of the file itself");
    }
    if (own != nullptr && number(own, own_name) != rank_) {
      fail(std::string(own_name) + " is " + std::to_string(number(own, own_name)) +
           " in the file of " + std::to_string(rank_));
    }
    out_.peer = static_cast<std::uint32_t>(peer);
    out_.tag = static_cast<std::uint32_t>(number(found_.comm_tag, "comm_tag") % kTagModulus);
  }

  void read_collective() {
    const std::uint64_t kind = number(found_.comm_type, "comm_type");
    if (kind >= kCollectiveNames.size())
      fail("comm_type is " + std::to_string(kind) + "; 0 to 9 was expected");
    out_.collective = static_cast<CollectiveKind>(kind);
    using Kind = CollectiveKind;
    if (rules_.upstream && out_.collective != Kind::kAllReduce &&
        out_.collective != Kind::kAllGather && out_.collective != Kind::kBroadcast &&
        out_.collective != Kind::kAllToAll && out_.collective != Kind::kReduceScatter) {
      fail("strict rules have no " + std::string(kCollectiveNames[kind]) +
           ", as upstream; ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL and BROADCAST run");
    }
    const bool sized =
        rules_.upstream || out_.collective != Kind::kBarrier || found_.comm_size != nullptr;
    if (sized) out_.bytes = bytes(found_.comm_size, "comm_size");
    if (!rules_.upstream && found_.root_rank != nullptr) out_.root = root();
    if (found_.pg_name != nullptr) out_.group = group();
    if (found_.involved_dim != nullptr) out_.dimensions = involved();
  }

  std::uint32_t group() const {
    const auto text = found_.pg_name->string_value();
    if (!text) fail("pg_name is no string");
    if (text->empty()) return 0;
    std::uint32_t id = 0;
    const auto result = std::from_chars(text->data(), text->data() + text->size(), id);
    if (result.ec != std::errc() || result.ptr != text->data() + text->size()) {
      fail("pg_name is \"" + std::string(*text) + "\"; the number of a comm group was expected");
    }
    return id;
  }

  std::string_view text(const Attribute* attribute, const char* name) const {
    const auto value = attribute->string_value();
    if (!value) {
      fail(std::string(name) + " is a " +
           std::string(encoding_name(attribute->encoding, attribute->list)) +
           "; a string was expected");
    }
    return *value;
  }

  std::uint32_t tier() const {
    const std::string_view name = text(found_.memory_tier, "memory_tier");
    if (rules_.tiers == nullptr) return 0;
    std::string known;
    for (std::uint32_t at = 0; at < rules_.tiers->size(); ++at) {
      if ((*rules_.tiers)[at] == name) return at;
      known.append(at == 0 ? "" : ", ").append((*rules_.tiers)[at]);
    }
    fail("memory_tier is \"" + std::string(name) + "\"; " +
         (known.empty() ? "tiers in the remote-memory file were expected"
                        : "one of " + known + " was expected"));
  }

  // Work that waits for nobody once it has begun: no order on a stream can keep it from ending.
  model::Stream stream() const {
    const std::string_view name = text(found_.engine_stream, "engine_stream");
    if (node_.type == NodeType::kInvalid || node_.type == NodeType::kMetadata ||
        node_.type >= NodeType::kCommSend) {
      fail("engine_stream is there for COMP, MEM_LOAD and MEM_STORE only");
    }
    for (const auto& [known, one] : kStreams) {
      if (known == name) return one;
    }
    fail("engine_stream is \"" + std::string(name) +
         "\"; one of compute, copy_in, copy_out, pim, host was expected");
  }

  std::uint32_t root() const {
    const std::uint64_t rank = number(found_.root_rank, "root_rank");
    if (rank >= rules_.npus)
      fail("root_rank is " + std::to_string(rank) + "; a place in the group was expected");
    return static_cast<std::uint32_t>(rank);
  }

  std::uint32_t involved() const {
    std::optional<std::vector<std::uint64_t>> flags;
    try {
      flags = found_.involved_dim->number_list();
    } catch (const WireError& error) {
      fail(std::string("involved_dim: ") + error.what());
    }
    if (!flags) fail("involved_dim is no list of true and false");
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < flags->size() && i < 32; ++i)
      bits |= ((*flags)[i] != 0 ? 1u : 0u) << i;
    return bits;
  }

  const Node& node_;
  const std::string& path_;
  std::uint32_t rank_;
  const FieldRules& rules_;
  Found found_;
  NodeFields out_;
};

}  // namespace

std::string place_of(const Node& node, const std::string& path) {
  const auto type = kNodeTypeNames[static_cast<std::size_t>(node.type)];
  return path + ": node " + std::to_string(node.id) + " (" + std::string(type) + " \"" +
         std::string(node.name) + "\"): ";
}

NodeFields read_fields(const Node& node, const std::string& path, std::uint32_t rank,
                       const FieldRules& rules) {
  return FieldReader(node, path, rank, rules).read();
}

}  // namespace astra_sim::chakra
