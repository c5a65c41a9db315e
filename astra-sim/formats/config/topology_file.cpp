#include "formats/config/topology_file.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>

#include "formats/text/fields.h"
#include "formats/text/json.h"
#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

using model::InputError;
using Words = std::initializer_list<std::string_view>;

constexpr std::int64_t kMostDevices = 65'536;
constexpr std::int64_t kMostParallel = 1024;

class TopologyParser {
 public:
  explicit TopologyParser(const std::string& path) { out_.path = path; }

  TopologyFile parse(const Json& json) {
    only(json, {"name", "source", "preset", "parameters", "dimensions", "devices", "devices_relay",
                "switches", "links", "routes", "groups", "hardware", "reducing_network"});
    const Fields fields(out_.path, json);
    if (fields.has("preset")) {
      fields.fail(
          "preset",
          "is a generator of llmsim; `llmsim topology export FILE` writes the network that it "
          "makes link by link");
    }
    if (fields.has("dimensions") == fields.has("devices")) {
      throw InputError(out_.path + ": either dimensions or devices was expected");
    }
    if (fields.has("dimensions")) {
      for (const Json& entry : items(json, "dimensions")) dimension(entry);
      if (out_.dimensions.empty())
        fields.fail("dimensions", "is empty; one dimension is needed at least");
      return std::move(out_);
    }
    devices(json);
    out_.devices_relay = fields.flag("devices_relay").value_or(false);
    for (const Json& entry : items(json, "switches")) add_switch(entry);
    for (const Json& entry : items(json, "links")) link(entry);
    for (const Json& entry : items(json, "routes")) route(entry);
    return std::move(out_);
  }

 private:
  void only(const Json& object, Words known) const {
    const Fields checked(out_.path, object);
    for (const auto& [key, value] : object.members) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      throw InputError(place(out_.path, value) + ": \"" + key + "\" is not a known field" +
                       nearest(key, std::span(known.begin(), known.size())));
    }
  }

  const std::vector<Json>& items(const Json& object, std::string_view key) const {
    static const std::vector<Json> none;
    const Json* list = object.find(key);
    if (list == nullptr) return none;
    if (list->kind != Json::Kind::kArray) {
      throw InputError(place(out_.path, *list) + ": " + std::string(key) + " is " +
                       std::string(list->kind_name()) + "; a list was expected");
    }
    return list->items;
  }

  double above_zero(const Fields& fields, std::string_view key) const {
    const auto value = fields.real(key);
    if (!value) fields.fail(key, "is missing");
    if (*value <= 0 || *value > 1e5) fields.fail(key, "has to be above 0 and at most 100000 GB/s");
    return *value;
  }

  double or_zero(const Fields& fields, std::string_view key, double most) const {
    const double value = fields.real(key).value_or(0);
    if (value > most) fields.fail(key, "is too large");
    return value;
  }

  void dimension(const Json& entry) {
    only(entry, {"kind", "size", "bandwidth_gb_per_s", "latency_ns", "bisection_gb_per_s"});
    const Fields fields(out_.path, entry);
    constexpr std::array<std::string_view, 3> kinds = {"ring", "fully_connected", "switch"};
    const auto kind = fields.choice("kind", kinds);
    const auto size = fields.integer("size", 1);
    if (!kind) fields.fail("kind", "is missing; ring, switch or fully_connected was expected");
    if (!size || *size > kMostDevices) fields.fail("size", "has to be 1 to 65536");
    out_.dimensions.push_back({static_cast<NetworkShape>(*kind), static_cast<std::uint32_t>(*size),
                               above_zero(fields, "bandwidth_gb_per_s"),
                               or_zero(fields, "latency_ns", 1e12),
                               or_zero(fields, "bisection_gb_per_s", 1e12)});
  }

  void devices(const Json& json) {
    const Json& value = *json.find("devices");
    if (value.kind == Json::Kind::kArray) {
      for (const Json& item : value.items) name(text_of(item, "devices"), item);
      out_.devices = static_cast<std::uint32_t>(value.items.size());
    } else {
      const auto count = Fields(out_.path, json).integer("devices", 1);
      if (*count > kMostDevices)
        Fields(out_.path, json).fail("devices", "has to be 1 to 65536, or a list");
      for (std::int64_t at = 0; at < *count; ++at) name(std::to_string(at), value);
      out_.devices = static_cast<std::uint32_t>(*count);
    }
  }

  void name(const std::string& text, const Json& at) {
    if (number_.emplace(text, static_cast<std::uint32_t>(number_.size())).second) return;
    throw InputError(place(out_.path, at) + ": \"" + text +
                     "\" names two places; each needs its own name");
  }

  const std::string& text_of(const Json& item, const char* key) const {
    if (item.kind == Json::Kind::kString) return item.text;
    throw InputError(place(out_.path, item) + ": " + key + " holds " +
                     std::string(item.kind_name()) + "; names were expected");
  }

  std::uint32_t find(const std::string& text, const Json& at) const {
    const auto found = number_.find(text);
    if (found != number_.end()) return found->second;
    throw InputError(place(out_.path, at) + ": there is no device or switch \"" + text + "\"");
  }

  void add_switch(const Json& entry) {
    only(entry, {"name", "bisection_gb_per_s", "spread"});
    const Fields fields(out_.path, entry);
    const auto text = fields.text("name");
    if (!text) fields.fail("name", "is missing");
    name(*text, entry);
    const std::int64_t spread = fields.integer("spread", 0).value_or(0);
    if (spread > kMostDevices) fields.fail("spread", "has to be at most 65536");
    out_.switches.push_back(
        {or_zero(fields, "bisection_gb_per_s", 1e12), static_cast<std::uint32_t>(spread)});
  }

  void link(const Json& entry) {
    only(entry, {"a", "b", "bandwidth_gb_per_s", "latency_ns", "count"});
    const Fields fields(out_.path, entry);
    const auto a = fields.text("a"), b = fields.text("b");
    if (!a || !b) fields.fail(a ? "b" : "a", "is missing; a link joins the places a and b");
    const std::int64_t count = fields.integer("count", 1).value_or(1);
    if (count > kMostParallel) fields.fail("count", "has to be at most 1024");
    const TopologyLink made{find(*a, entry), find(*b, entry),
                            above_zero(fields, "bandwidth_gb_per_s"),
                            or_zero(fields, "latency_ns", 1e12)};
    out_.links.insert(out_.links.end(), static_cast<std::size_t>(count), made);
  }

  void route(const Json& entry) {
    if (entry.kind != Json::Kind::kArray) {
      throw InputError(place(out_.path, entry) +
                       ": a route is a list of names, from device to device");
    }
    std::vector<std::uint32_t> vertices;
    for (const Json& item : entry.items) vertices.push_back(find(text_of(item, "routes"), item));
    out_.routes.push_back(std::move(vertices));
  }

  TopologyFile out_;
  std::unordered_map<std::string, std::uint32_t> number_;
};

}  // namespace

TopologyFile read_topology_file(const std::string& path) {
  return TopologyParser(path).parse(read_json(path));
}

}  // namespace astra_sim::config
