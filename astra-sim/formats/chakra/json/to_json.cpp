#include "formats/chakra/json/to_json.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <utility>

#include "formats/chakra/wire.h"
#include "formats/text/json.h"

namespace astra_sim::chakra {

namespace {

using config::quoted;

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      word = (word << 8) | (k < count ? static_cast<std::uint8_t>(bytes[at + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k)
      out.push_back(k <= count ? digits[(word >> (18 - 6 * k)) & 63] : '=');
  }
  return out;
}

// 64-bit integers are strings in protobuf's JSON.
template <class Integer>
std::string text_of(Integer value) {
  std::string text(1, '"');
  return text.append(std::to_string(value)).append(1, '"');
}

template <class Real>
std::string real(Real value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string number(const Attribute& attribute, std::uint64_t bits) {
  switch (attribute.encoding) {
    case Encoding::kF64:
      return real(std::bit_cast<double>(bits));
    case Encoding::kF32:
      return real(static_cast<float>(std::bit_cast<double>(bits)));
    case Encoding::kBoolean:
      return bits != 0 ? "true" : "false";
    case Encoding::kInt32:
    case Encoding::kSint32:
    case Encoding::kSfixed32:
      return std::to_string(static_cast<std::int64_t>(bits));
    case Encoding::kUint32:
    case Encoding::kFixed32:
      return std::to_string(bits);
    default:
      return attribute.is_signed() ? text_of(static_cast<std::int64_t>(bits)) : text_of(bits);
  }
}

// Members of an object; each key is a name of the schema.
class Object {
 public:
  void put(std::string_view key, const std::string& value) {
    text_ += text_.empty() ? "{\"" : ", \"";
    text_.append(key).append("\": ").append(value);
  }
  void put_text(std::string_view key, std::string_view value) {
    if (!value.empty()) put(key, quoted(value));
  }
  void put_id(std::string_view key, std::uint64_t value) {
    if (value != 0) put(key, text_of(value));
  }
  std::string close() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

template <class Items, class Format>
std::string list(const Items& items, Format format) {
  std::string text = "[";
  for (const auto& item : items) text.append(text.size() == 1 ? "" : ", ").append(format(item));
  return text + "]";
}

std::string value_json(const Attribute& attribute) {
  const bool is_bytes = attribute.encoding == Encoding::kBytes;
  const auto text = [&](std::string_view value) {
    return quoted(is_bytes ? base64(value) : std::string(value));
  };
  if (!attribute.list) {
    return is_bytes || attribute.encoding == Encoding::kString ? text(attribute.payload)
                                                               : number(attribute, attribute.bits);
  }
  Object object;
  if (const auto numbers = attribute.number_list(); numbers && !numbers->empty()) {
    object.put("values",
               list(*numbers, [&](std::uint64_t bits) { return number(attribute, bits); }));
  }
  if (const auto texts = attribute.string_list(); texts && !texts->empty())
    object.put("values", list(*texts, text));
  return object.close();
}

std::string attribute_json(const Attribute& attribute) {
  Object object;
  object.put_text("name", attribute.name);
  object.put_text("doc_string", attribute.doc);
  if (attribute.encoding != Encoding::kNone) {
    object.put(encoding_name(attribute.encoding, attribute.list), value_json(attribute));
  }
  return object.close();
}

std::string io_json(const IoInfo& io) {
  Object object;
  object.put_text("values", io.values);
  object.put_text("shapes", io.shapes);
  object.put_text("types", io.types);
  return object.close();
}

}  // namespace

std::string to_json(const Node& node) {
  const auto id = [](std::uint64_t value) { return text_of(value); };
  Object object;
  object.put_id("id", node.id);
  object.put_text("name", node.name);
  if (node.type != NodeType::kInvalid) {
    object.put("type",
               quoted(std::string(kNodeTypeNames[static_cast<std::size_t>(node.type)]) + "_NODE"));
  }
  if (!node.ctrl_deps.empty()) object.put("ctrl_deps", list(node.ctrl_deps, id));
  if (!node.data_deps.empty()) object.put("data_deps", list(node.data_deps, id));
  object.put_id("start_time_micros", node.start_time_micros);
  object.put_id("duration_micros", node.duration_micros);
  if (node.has_inputs) object.put("inputs", io_json(node.inputs));
  if (node.has_outputs) object.put("outputs", io_json(node.outputs));
  if (!node.attributes.empty()) object.put("attr", list(node.attributes, attribute_json));
  return object.close();
}

std::string to_json(const Metadata& metadata) {
  Object object;
  object.put_text("version", metadata.version);
  if (!metadata.attributes.empty()) object.put("attr", list(metadata.attributes, attribute_json));
  return object.close();
}

}  // namespace astra_sim::chakra
