// Nodes into records of a Chakra file.
#include <bit>

#include "formats/chakra/node.h"
#include "formats/chakra/wire.h"

namespace astra_sim::chakra {

void encode_number(std::string& out, Encoding encoding, std::uint64_t bits) {
  switch (encoding) {
    case Encoding::kF64:
    case Encoding::kFixed64:
    case Encoding::kSfixed64:
      put_fixed(out, bits);
      return;
    case Encoding::kF32:
      put_fixed(out, static_cast<float>(std::bit_cast<double>(bits)));
      return;
    case Encoding::kFixed32:
    case Encoding::kSfixed32:
      put_fixed(out, static_cast<std::uint32_t>(bits));
      return;
    case Encoding::kSint32:
    case Encoding::kSint64:
      put_varint(out, zigzag(static_cast<std::int64_t>(bits)));
      return;
    default:
      put_varint(out, bits);
  }
}

namespace {

WireType single_wire_type(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF64:
    case Encoding::kFixed64:
    case Encoding::kSfixed64:
      return WireType::kFixed64;
    case Encoding::kF32:
    case Encoding::kFixed32:
    case Encoding::kSfixed32:
      return WireType::kFixed32;
    default:
      return WireType::kVarint;
  }
}

std::string encode_attribute(const Attribute& attribute) {
  std::string out;
  if (!attribute.name.empty()) put_bytes(out, 1, attribute.name);
  if (!attribute.doc.empty()) put_bytes(out, 2, attribute.doc);
  const auto field = static_cast<unsigned>(attribute.encoding);
  if (attribute.encoding == Encoding::kNone) return out;
  if (attribute.list) {
    put_bytes(out, field + 1, attribute.payload);
  } else if (attribute.encoding == Encoding::kString || attribute.encoding == Encoding::kBytes) {
    put_bytes(out, field, attribute.payload);
  } else {
    put_tag(out, field, single_wire_type(attribute.encoding));
    encode_number(out, attribute.encoding, attribute.bits);
  }
  return out;
}

void put_unless_zero(std::string& out, unsigned field, std::uint64_t value) {
  if (value == 0) return;
  put_tag(out, field, WireType::kVarint);
  put_varint(out, value);
}

void put_packed(std::string& out, unsigned field, const std::vector<std::uint64_t>& values) {
  if (values.empty()) return;
  std::string packed;
  for (const std::uint64_t value : values) put_varint(packed, value);
  put_bytes(out, field, packed);
}

void put_io(std::string& out, unsigned field, const IoInfo& io) {
  std::string record;
  if (!io.values.empty()) put_bytes(record, 1, io.values);
  if (!io.shapes.empty()) put_bytes(record, 2, io.shapes);
  if (!io.types.empty()) put_bytes(record, 3, io.types);
  put_bytes(out, field, record);
}

void put_record(std::string& out, const std::string& record) {
  put_varint(out, record.size());
  out.append(record);
}

}  // namespace

void encode_node(const Node& node, std::string& out) {
  std::string record;
  put_unless_zero(record, 1, node.id);
  if (!node.name.empty()) put_bytes(record, 2, node.name);
  put_unless_zero(record, 3, static_cast<std::uint64_t>(node.type));
  put_packed(record, 4, node.ctrl_deps);
  put_packed(record, 5, node.data_deps);
  put_unless_zero(record, 6, node.start_time_micros);
  put_unless_zero(record, 7, node.duration_micros);
  if (node.has_inputs) put_io(record, 8, node.inputs);
  if (node.has_outputs) put_io(record, 9, node.outputs);
  for (const Attribute& attribute : node.attributes)
    put_bytes(record, 10, encode_attribute(attribute));
  put_record(out, record);
}

void encode_metadata(const Metadata& metadata, std::string& out) {
  std::string record;
  if (!metadata.version.empty()) put_bytes(record, 1, metadata.version);
  for (const Attribute& attribute : metadata.attributes)
    put_bytes(record, 2, encode_attribute(attribute));
  put_record(out, record);
}

}  // namespace astra_sim::chakra
