// A node of a Chakra execution trace, as read from a file: views into the record, valid until the
// next one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/chakra/attribute.h"

namespace astra_sim::chakra {

enum class NodeType : std::uint8_t {
  kInvalid,
  kMetadata,
  kMemLoad,
  kMemStore,
  kComp,
  kCommSend,
  kCommRecv,
  kCommColl
};
inline constexpr std::array<std::string_view, 8> kNodeTypeNames = {
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"};

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kBroadcast,
  kAllToAll,
  kReduceScatter,
  kReduceScatterBlock,
  kBarrier,
};
inline constexpr std::array<std::string_view, 10> kCollectiveNames = {
    "ALL_REDUCE", "REDUCE",         "ALL_GATHER",           "GATHER", "SCATTER", "BROADCAST",
    "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"};

struct IoInfo {
  std::string_view values, shapes, types;
};

struct Node {
  std::uint64_t id = 0;
  std::string_view name;
  NodeType type = NodeType::kInvalid;
  std::uint64_t start_time_micros = 0;
  std::uint64_t duration_micros = 0;
  bool has_inputs = false;
  bool has_outputs = false;
  IoInfo inputs, outputs;
  std::vector<std::uint64_t> ctrl_deps, data_deps;
  std::vector<Attribute> attributes;

  // The first attribute of that name, or null.
  const Attribute* find(std::string_view attribute) const;
};

struct Metadata {
  std::string_view version;
  std::vector<Attribute> attributes;
};

// Decode one record, reusing the vectors of `node`. Throw WireError.
void decode_node(std::string_view record, Node& node);
void decode_metadata(std::string_view record, Metadata& metadata);

// Append the record of a node or of metadata to `out`, its length in front. Equal content gives
// equal bytes.
void encode_node(const Node& node, std::string& out);
void encode_metadata(const Metadata& metadata, std::string& out);

// One number of a list, as `bits` of an Attribute.
void encode_number(std::string& out, Encoding encoding, std::uint64_t bits);

}  // namespace astra_sim::chakra
