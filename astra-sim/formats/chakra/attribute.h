// One attribute of a Chakra node: its encoding as on the wire, and its value read as what a user of
// it wants.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace astra_sim::chakra {

// The encodings, by the field number of the single value; its list has the next number.
enum class Encoding : std::uint8_t {
  kNone = 0,
  kF64 = 3,
  kF32 = 5,
  kInt32 = 7,
  kInt64 = 9,
  kUint32 = 11,
  kUint64 = 13,
  kSint32 = 15,
  kSint64 = 17,
  kFixed32 = 19,
  kFixed64 = 21,
  kSfixed32 = 23,
  kSfixed64 = 25,
  kBoolean = 27,
  kString = 29,
  kBytes = 31,
};

// Views into the record that was read: valid until the reader's next record.
struct Attribute {
  std::string_view name;
  std::string_view doc;
  Encoding encoding = Encoding::kNone;
  bool list = false;
  std::uint64_t bits =
      0;  // a single number: signed ones sign-extended, floating point as the bits of a double
  std::string_view payload;  // a single string or bytes, or the encoded list message

  bool is_integer() const {
    return !list && encoding >= Encoding::kInt32 && encoding <= Encoding::kBoolean;
  }
  bool is_signed() const;

  // Empty where the value is of another type: floating point and strings never become integers.
  std::optional<std::uint64_t> unsigned_value() const;  // also empty for a negative number
  std::optional<std::string_view> string_value() const;
  // Numbers as `bits` above; empty optional where it is no list of numbers. Throws WireError.
  std::optional<std::vector<std::uint64_t>> number_list() const;
  std::optional<std::vector<std::string_view>> string_list() const;
};

// Name of an encoding for messages: "int64_val", "string_list".
std::string_view encoding_name(Encoding encoding, bool list);

// Decodes one AttributeProto into a fresh `attribute`. Throws WireError.
void decode_attribute(std::string_view record, Attribute& attribute);

}  // namespace astra_sim::chakra
