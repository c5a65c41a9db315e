#include "formats/chakra/json/graph_text.h"

#include <array>

#include "formats/text/json.h"

namespace astra_sim::chakra {

namespace {

constexpr std::array<std::string_view, 4> kNumbers = {"comm_type", "comm_size", "tensor_size",
                                                      "num_ops"};

std::string_view type_name(const Node& node) {
  return kNodeTypeNames[static_cast<std::size_t>(node.type)];
}

// XML has no place for control characters, and `&`, `<`, `>`, `"` have a meaning.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out +=
          static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f ? '?' : c;
    }
  }
  return out;
}

std::string size_of(const Node& node) {
  for (const std::string_view key : {"comm_size", "tensor_size"}) {
    const Attribute* attribute = node.find(key);
    if (attribute == nullptr) continue;
    if (const auto value = attribute->unsigned_value()) return std::to_string(*value) + " B";
  }
  return node.duration_micros != 0 ? std::to_string(node.duration_micros) + " us" : "";
}

template <class Edge>
void each_edge(const Node& node, Edge edge) {
  for (const std::uint64_t parent : node.data_deps) edge(parent, false);
  for (const std::uint64_t parent : node.ctrl_deps) edge(parent, true);
}

}  // namespace

std::string Dot::begin(const std::string& name) {
  return "digraph " + config::quoted(name) + " {\n  rankdir=LR;\n  node [shape=box];\n";
}

std::string Dot::node(const Node& node) {
  const std::string id = std::to_string(node.id);
  std::string label = id + " " + std::string(node.name) + "\n" + std::string(type_name(node));
  if (const std::string size = size_of(node); !size.empty()) label += " " + size;
  std::string text = "  n" + id + " [label=" + config::quoted(label) + "];\n";
  each_edge(node, [&](std::uint64_t parent, bool control) {
    text +=
        "  n" + std::to_string(parent) + " -> n" + id + (control ? " [arrowhead=tee];\n" : ";\n");
  });
  return text;
}

std::string Dot::end() { return "}\n"; }

std::string GraphMl::begin(const std::string& name) {
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<graphml "
      "xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n";
  const auto key = [&](std::string_view id, const char* of, const char* type) {
    text.append("<key id=\"")
        .append(id)
        .append("\" for=\"")
        .append(of)
        .append("\" attr.name=\"")
        .append(id);
    text.append("\" attr.type=\"").append(type).append("\"/>\n");
  };
  key("name", "node", "string");
  key("type", "node", "string");
  key("duration_micros", "node", "long");
  for (const std::string_view number : kNumbers) key(number, "node", "long");
  key("kind", "edge", "string");
  return text + "<graph id=\"" + escaped(name) + "\" edgedefault=\"directed\">\n";
}

std::string GraphMl::node(const Node& node) {
  const std::string id = std::to_string(node.id);
  std::string text = "<node id=\"" + id + "\">";
  const auto data = [&](std::string_view key, const std::string& value) {
    text.append("<data key=\"").append(key).append("\">").append(value).append("</data>");
  };
  data("name", escaped(node.name));
  data("type", std::string(type_name(node)));
  if (node.duration_micros != 0) data("duration_micros", std::to_string(node.duration_micros));
  for (const std::string_view key : kNumbers) {
    const Attribute* attribute = node.find(key);
    if (attribute == nullptr) continue;
    if (const auto value = attribute->unsigned_value()) data(key, std::to_string(*value));
  }
  text += "</node>\n";
  each_edge(node, [&](std::uint64_t parent, bool control) {
    text += "<edge source=\"" + std::to_string(parent) + "\" target=\"" + id +
            "\"><data key=\"kind\">" + (control ? "control" : "data") + "</data></edge>\n";
  });
  return text;
}

std::string GraphMl::end() { return "</graph>\n</graphml>\n"; }

}  // namespace astra_sim::chakra
