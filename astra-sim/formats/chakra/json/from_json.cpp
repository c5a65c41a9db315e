// Nodes, metadata and attributes from their JSON objects.
#include "formats/chakra/json/from_json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "formats/chakra/wire.h"
#include "model/base/input_error.h"

namespace astra_sim::chakra {

namespace {

using config::Json;
using model::InputError;

class JsonConverter {
 public:
  JsonConverter(const std::string& place, OwnNode& keeper) : place_(place), keeper_(keeper) {}

  void node(const Json& json) {
    expect_object(json, "a node");
    Node& node = keeper_.node;
    for (const auto& [key, value] : json.members) {
      if (key == "id") {
        node.id = unsigned_of(key, value);
      } else if (key == "name") {
        node.name = text(key, value);
      } else if (key == "type") {
        node.type = type(value);
      } else if (key == "ctrl_deps" || key == "data_deps") {
        auto& list = key == "ctrl_deps" ? node.ctrl_deps : node.data_deps;
        for (const Json& item : items(key, value)) list.push_back(unsigned_of(key, item));
      } else if (key == "start_time_micros") {
        node.start_time_micros = unsigned_of(key, value);
      } else if (key == "duration_micros") {
        node.duration_micros = unsigned_of(key, value);
      } else if (key == "inputs") {
        node.has_inputs = true;
        node.inputs = io(key, value);
      } else if (key == "outputs") {
        node.has_outputs = true;
        node.outputs = io(key, value);
      } else if (key == "attr") {
        for (const Json& item : items(key, value)) node.attributes.push_back(attribute(item));
      } else {
        fail(key, "is not a field of a node");
      }
    }
  }

  void metadata(const Json& json, Metadata& out) {
    expect_object(json, "metadata");
    for (const auto& [key, value] : json.members) {
      if (key == "version") {
        out.version = text(key, value);
      } else if (key == "attr") {
        for (const Json& item : items(key, value)) out.attributes.push_back(attribute(item));
      } else {
        fail(key, "is not a field of the metadata");
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw InputError(place_ + ": " + key + " " + what);
  }
  void expect_object(const Json& json, const std::string& what) const {
    if (json.kind != Json::Kind::kObject) {
      throw InputError(place_ + " is " + std::string(json.kind_name()) + "; " + what +
                       " (an object) was expected");
    }
  }

  const std::vector<Json>& items(const std::string& key, const Json& value) const {
    if (value.kind != Json::Kind::kArray)
      fail(key, "is " + std::string(value.kind_name()) + "; a list was expected");
    return value.items;
  }

  std::string_view text(const std::string& key, const Json& value) {
    if (value.kind != Json::Kind::kString) {
      fail(key, "is " + std::string(value.kind_name()) + "; a string was expected");
    }
    return keeper_.keep(value.text);
  }

  // 64-bit numbers may be strings, as in protobuf's own JSON.
  template <class Integer>
  Integer integer(const std::string& key, const Json& value, Integer low, Integer high) const {
    Integer number = 0;
    bool found = false;
    if (value.kind == Json::Kind::kString) {
      const char* end = value.text.data() + value.text.size();
      const auto result = std::from_chars(value.text.data(), end, number);
      found = result.ec == std::errc() && result.ptr == end && !value.text.empty();
    } else if (value.kind == Json::Kind::kNumber && value.integral) {
      found = std::in_range<Integer>(value.integer);
      if (found) number = static_cast<Integer>(value.integer);
    } else if (value.kind == Json::Kind::kNumber && value.number == std::floor(value.number)) {
      found = value.number >= static_cast<double>(low) && value.number < static_cast<double>(high);
      if (found) number = static_cast<Integer>(value.number);
    }
    if (!found || number < low || number > high) {
      fail(key,
           "has to be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  }

  std::uint64_t unsigned_of(const std::string& key, const Json& value) const {
    return integer<std::uint64_t>(key, value, 0, std::numeric_limits<std::uint64_t>::max());
  }

  NodeType type(const Json& value) const {
    if (value.kind == Json::Kind::kNumber) {
      return static_cast<NodeType>(
          integer<std::uint64_t>("type", value, 0, kNodeTypeNames.size() - 1));
    }
    for (std::size_t at = 0; at < kNodeTypeNames.size(); ++at) {
      const std::string_view name = kNodeTypeNames[at];
      if (value.text == name || value.text == std::string(name) + "_NODE")
        return static_cast<NodeType>(at);
    }
    fail("type", "is \"" + value.text +
                     "\"; COMP_NODE, COMM_COLL_NODE or another of Chakra's types was expected");
  }

  IoInfo io(const std::string& key, const Json& value) {
    expect_object(value, key);
    IoInfo out;
    for (const auto& [name, part] : value.members) {
      if (name == "values") {
        out.values = text(name, part);
      } else if (name == "shapes") {
        out.shapes = text(name, part);
      } else if (name == "types") {
        out.types = text(name, part);
      } else {
        fail(key + "." + name, "is not a field; values, shapes and types are");
      }
    }
    return out;
  }

  Attribute attribute(const Json& json) {
    expect_object(json, "an attribute");
    Attribute out;
    for (const auto& [key, value] : json.members) {
      if (key == "name") {
        out.name = text(key, value);
      } else if (key == "doc_string") {
        out.doc = text(key, value);
      } else {
        take_value(key, value, out);
      }
    }
    return out;
  }

  void take_value(const std::string& key, const Json& value, Attribute& out) {
    for (unsigned field = 3; field <= 32; ++field) {
      const auto encoding = static_cast<Encoding>(field % 2 == 1 ? field : field - 1);
      const bool list = field % 2 == 0;
      if (encoding_name(encoding, list) != key) continue;
      if (out.encoding != Encoding::kNone) fail(key, "is a second value of one attribute");
      out.encoding = encoding;
      out.list = list;
      if (list) {
        out.payload = list_payload(key, value, encoding);
      } else if (encoding == Encoding::kString || encoding == Encoding::kBytes) {
        out.payload =
            encoding == Encoding::kBytes ? keeper_.keep(base64(key, value)) : text(key, value);
      } else {
        out.bits = number(key, value, encoding);
      }
      return;
    }
    fail(key, "is not a field of an attribute");
  }

  std::uint64_t number(const std::string& key, const Json& value, Encoding encoding) const {
    using Limits32 = std::numeric_limits<std::int32_t>;
    using Limits64 = std::numeric_limits<std::int64_t>;
    switch (encoding) {
      case Encoding::kF64:
      case Encoding::kF32:
        return std::bit_cast<std::uint64_t>(real(key, value));
      case Encoding::kBoolean:
        if (value.kind != Json::Kind::kBoolean) fail(key, "has to be true or false");
        return value.boolean ? 1 : 0;
      case Encoding::kInt32:
      case Encoding::kSint32:
      case Encoding::kSfixed32:
        return static_cast<std::uint64_t>(
            integer<std::int64_t>(key, value, Limits32::min(), Limits32::max()));
      case Encoding::kInt64:
      case Encoding::kSint64:
      case Encoding::kSfixed64:
        return static_cast<std::uint64_t>(
            integer<std::int64_t>(key, value, Limits64::min(), Limits64::max()));
      case Encoding::kUint32:
      case Encoding::kFixed32:
        return integer<std::uint64_t>(key, value, 0, std::numeric_limits<std::uint32_t>::max());
      default:
        return unsigned_of(key, value);
    }
  }

  double real(const std::string& key, const Json& value) const {
    if (value.kind == Json::Kind::kNumber)
      return value.integral ? static_cast<double>(value.integer) : value.number;
    if (value.text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (value.text == "Infinity") return std::numeric_limits<double>::infinity();
    if (value.text == "-Infinity") return -std::numeric_limits<double>::infinity();
    fail(key, "has to be a number");
  }

  std::string base64(const std::string& key, const Json& value) const {
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (value.kind != Json::Kind::kString) fail(key, "has to be a string in base64");
    std::string out;
    std::uint32_t word = 0;
    unsigned bits = 0;
    for (const char c : value.text) {
      if (c == '=') break;
      const std::size_t digit = digits.find(c == '-' ? '+' : c == '_' ? '/' : c);
      if (digit == std::string_view::npos) fail(key, "has to be a string in base64");
      word = (word << 6) | static_cast<std::uint32_t>(digit);
      bits += 6;
      if (bits < 8) continue;
      bits -= 8;
      out.push_back(static_cast<char>((word >> bits) & 0xff));
    }
    return out;
  }

  std::string_view list_payload(const std::string& key, const Json& value, Encoding encoding) {
    expect_object(value, key);
    const Json* values = value.find("values");
    std::string payload;
    if (values == nullptr || items(key + ".values", *values).empty()) return {};
    if (encoding == Encoding::kString || encoding == Encoding::kBytes) {
      for (const Json& item : values->items) {
        put_bytes(payload, 1,
                  encoding == Encoding::kBytes ? base64(key, item) : std::string(text(key, item)));
      }
    } else {
      std::string packed;
      for (const Json& item : values->items)
        encode_number(packed, encoding, number(key, item, encoding));
      put_bytes(payload, 1, packed);
    }
    return keeper_.keep(std::move(payload));
  }

  const std::string& place_;
  OwnNode& keeper_;
};

}  // namespace

bool is_node(const Json& json) {
  return json.find("id") != nullptr || json.find("type") != nullptr || json.find("name") != nullptr;
}

void from_json(const Json& json, const std::string& place, OwnNode& node) {
  node.clear();
  JsonConverter(place, node).node(json);
}

void metadata_from_json(const Json& json, const std::string& place, OwnNode& keeper,
                        Metadata& metadata) {
  JsonConverter(place, keeper).metadata(json, metadata);
}

}  // namespace astra_sim::chakra
