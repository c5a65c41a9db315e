// Records of a Chakra file into nodes.
#include "formats/chakra/node.h"
#include "formats/chakra/wire.h"

namespace astra_sim::chakra {

namespace {

void read_dependencies(Cursor& cursor, WireType type, std::vector<std::uint64_t>& ids) {
  if (type == WireType::kVarint) {
    ids.push_back(cursor.varint());
    return;
  }
  if (type != WireType::kBytes) throw WireError("a dependency has a wrong wire type");
  Cursor packed(cursor.bytes());
  while (!packed.done()) ids.push_back(packed.varint());
}

void read_io(std::string_view record, IoInfo& io) {
  Cursor cursor(record);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    const std::uint64_t field = tag >> 3;
    if (type != WireType::kBytes || field < 1 || field > 3) {
      cursor.skip(type);
      continue;
    }
    (field == 1 ? io.values : field == 2 ? io.shapes : io.types) = cursor.bytes();
  }
}

std::string_view expect_bytes(Cursor& cursor, WireType type) {
  if (type != WireType::kBytes) throw WireError("a field has a wrong wire type");
  return cursor.bytes();
}

std::uint64_t expect_varint(Cursor& cursor, WireType type) {
  if (type != WireType::kVarint) throw WireError("a field has a wrong wire type");
  return cursor.varint();
}

void clear(Node& node) {
  node.id = 0;
  node.name = {};
  node.type = NodeType::kInvalid;
  node.start_time_micros = node.duration_micros = 0;
  node.has_inputs = node.has_outputs = false;
  node.inputs = node.outputs = {};
  node.ctrl_deps.clear();
  node.data_deps.clear();
  node.attributes.clear();
}

NodeType node_type(std::uint64_t value) {
  if (value >= kNodeTypeNames.size())
    throw WireError("node type " + std::to_string(value) + " does not exist (0 to 7)");
  return static_cast<NodeType>(value);
}

}  // namespace

const Attribute* Node::find(std::string_view attribute) const {
  for (const Attribute& candidate : attributes) {
    if (candidate.name == attribute) return &candidate;
  }
  return nullptr;
}

void decode_node(std::string_view record, Node& node) {
  clear(node);
  Cursor cursor(record);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    switch (tag >> 3) {
      case 1:
        node.id = expect_varint(cursor, type);
        break;
      case 2:
        node.name = expect_bytes(cursor, type);
        break;
      case 3:
        node.type = node_type(expect_varint(cursor, type));
        break;
      case 4:
        read_dependencies(cursor, type, node.ctrl_deps);
        break;
      case 5:
        read_dependencies(cursor, type, node.data_deps);
        break;
      case 6:
        node.start_time_micros = expect_varint(cursor, type);
        break;
      case 7:
        node.duration_micros = expect_varint(cursor, type);
        break;
      case 8:
        node.has_inputs = true;
        read_io(expect_bytes(cursor, type), node.inputs);
        break;
      case 9:
        node.has_outputs = true;
        read_io(expect_bytes(cursor, type), node.outputs);
        break;
      case 10:
        decode_attribute(expect_bytes(cursor, type), node.attributes.emplace_back());
        break;
      default:
        cursor.skip(type);
    }
  }
}

void decode_metadata(std::string_view record, Metadata& metadata) {
  metadata = {};
  Cursor cursor(record);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    if (tag >> 3 == 1) {
      metadata.version = expect_bytes(cursor, type);
    } else if (tag >> 3 == 2) {
      decode_attribute(expect_bytes(cursor, type), metadata.attributes.emplace_back());
    } else {
      cursor.skip(type);
    }
  }
}

}  // namespace astra_sim::chakra
