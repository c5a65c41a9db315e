#include "formats/chakra/attribute.h"

#include <array>
#include <bit>

#include "formats/chakra/wire.h"

namespace astra_sim::chakra {

namespace {

WireType wire_type(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF64:
    case Encoding::kFixed64:
    case Encoding::kSfixed64:
      return WireType::kFixed64;
    case Encoding::kF32:
    case Encoding::kFixed32:
    case Encoding::kSfixed32:
      return WireType::kFixed32;
    case Encoding::kNone:
    case Encoding::kString:
    case Encoding::kBytes:
      return WireType::kBytes;
    default:
      return WireType::kVarint;
  }
}

std::uint64_t sign_extended(std::uint64_t low) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(low)));
}

std::uint64_t read_number(Cursor& cursor, Encoding encoding) {
  switch (encoding) {
    case Encoding::kF64:
    case Encoding::kFixed64:
    case Encoding::kSfixed64:
      return cursor.fixed<std::uint64_t>();
    case Encoding::kF32:
      return std::bit_cast<std::uint64_t>(static_cast<double>(cursor.fixed<float>()));
    case Encoding::kFixed32:
      return cursor.fixed<std::uint32_t>();
    case Encoding::kSfixed32:
      return sign_extended(cursor.fixed<std::uint32_t>());
    case Encoding::kInt32:
      return sign_extended(cursor.varint());
    case Encoding::kUint32:
      return static_cast<std::uint32_t>(cursor.varint());
    case Encoding::kSint32:
    case Encoding::kSint64:
      return static_cast<std::uint64_t>(unzigzag(cursor.varint()));
    case Encoding::kBoolean:
      return cursor.varint() != 0;
    default:
      return cursor.varint();
  }
}

constexpr std::array<std::string_view, 30> kFieldNames = {
    "double_val",  "double_list",  "float_val",    "float_list",    "int32_val",    "int32_list",
    "int64_val",   "int64_list",   "uint32_val",   "uint32_list",   "uint64_val",   "uint64_list",
    "sint32_val",  "sint32_list",  "sint64_val",   "sint64_list",   "fixed32_val",  "fixed32_list",
    "fixed64_val", "fixed64_list", "sfixed32_val", "sfixed32_list", "sfixed64_val", "sfixed64_list",
    "bool_val",    "bool_list",    "string_val",   "string_list",   "bytes_val",    "bytes_list"};

}  // namespace

bool Attribute::is_signed() const {
  switch (encoding) {
    case Encoding::kInt32:
    case Encoding::kInt64:
    case Encoding::kSint32:
    case Encoding::kSint64:
    case Encoding::kSfixed32:
    case Encoding::kSfixed64:
      return true;
    default:
      return false;
  }
}

std::optional<std::uint64_t> Attribute::unsigned_value() const {
  if (!is_integer()) return std::nullopt;
  if (is_signed() && static_cast<std::int64_t>(bits) < 0) return std::nullopt;
  return bits;
}

std::optional<std::string_view> Attribute::string_value() const {
  if (list || encoding != Encoding::kString) return std::nullopt;
  return payload;
}

std::optional<std::vector<std::uint64_t>> Attribute::number_list() const {
  if (!list || encoding == Encoding::kString || encoding == Encoding::kBytes) return std::nullopt;
  std::vector<std::uint64_t> values;
  Cursor cursor(payload);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    if (tag >> 3 != 1) {
      cursor.skip(type);
    } else if (type == WireType::kBytes) {
      Cursor packed(cursor.bytes());
      while (!packed.done()) values.push_back(read_number(packed, encoding));
    } else if (type == wire_type(encoding)) {
      values.push_back(read_number(cursor, encoding));
    } else {
      throw WireError("a list of numbers holds a value of another wire type");
    }
  }
  return values;
}

std::optional<std::vector<std::string_view>> Attribute::string_list() const {
  if (!list || (encoding != Encoding::kString && encoding != Encoding::kBytes)) return std::nullopt;
  std::vector<std::string_view> values;
  Cursor cursor(payload);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    if (tag >> 3 == 1 && type == WireType::kBytes) {
      values.push_back(cursor.bytes());
    } else {
      cursor.skip(type);
    }
  }
  return values;
}

std::string_view encoding_name(Encoding encoding, bool list) {
  if (encoding == Encoding::kNone) return "no value";
  return kFieldNames[static_cast<std::size_t>(encoding) - 3 + (list ? 1 : 0)];
}

void decode_attribute(std::string_view record, Attribute& attribute) {
  Cursor cursor(record);
  while (!cursor.done()) {
    const std::uint64_t tag = cursor.varint();
    const auto type = static_cast<WireType>(tag & 7);
    const std::uint64_t field = tag >> 3;
    if (field == 1 && type == WireType::kBytes) {
      attribute.name = cursor.bytes();
    } else if (field == 2 && type == WireType::kBytes) {
      attribute.doc = cursor.bytes();
    } else if (field < 3 || field > 32) {
      cursor.skip(type);
    } else {
      const bool list = field % 2 == 0;
      const auto encoding = static_cast<Encoding>(list ? field - 1 : field);
      if (type != (list ? WireType::kBytes : wire_type(encoding)))
        throw WireError("a value has another wire type");
      attribute.encoding = encoding;
      attribute.list = list;
      attribute.bits = 0;
      attribute.payload = {};
      if (type == WireType::kBytes) {
        attribute.payload = cursor.bytes();
      } else {
        attribute.bits = read_number(cursor, encoding);
      }
    }
  }
}

}  // namespace astra_sim::chakra
