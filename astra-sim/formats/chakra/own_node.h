// A node that is made here, not read: it keeps the texts that its fields view.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

class OwnNode {
 public:
  OwnNode() = default;
  OwnNode(const OwnNode&) = delete;
  OwnNode& operator=(const OwnNode&) = delete;

  // An empty node again.
  void clear() {
    node = Node{};
    texts_.clear();
  }
  void begin(std::uint64_t id, std::string name, NodeType type) {
    clear();
    node.id = id;
    node.name = keep(std::move(name));
    node.type = type;
  }
  // A view that lives until the next clear().
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

  void set(std::string_view name, std::uint64_t value) {
    add(name, Encoding::kUint64).bits = value;
  }
  void set_flag(std::string_view name, bool value) {
    add(name, Encoding::kBoolean).bits = value ? 1 : 0;
  }
  void set_text(std::string_view name, std::string value) {
    add(name, Encoding::kString).payload = keep(std::move(value));
  }

  Node node;

 private:
  Attribute& add(std::string_view name, Encoding encoding) {
    Attribute& attribute = node.attributes.emplace_back();
    attribute.name = keep(std::string(name));
    attribute.encoding = encoding;
    return attribute;
  }

  std::deque<std::string> texts_;  // does not move what it holds
};

}  // namespace astra_sim::chakra
