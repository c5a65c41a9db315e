#include "cli/tools/validate.h"

#include <array>
#include <charconv>
#include <optional>

#include "formats/chakra/dependencies.h"
#include "formats/chakra/node_fields.h"
#include "formats/chakra/protobuf/reader.h"
#include "formats/chakra/wire.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

constexpr std::size_t kMost = 20;
constexpr std::uint32_t kAnyNpu = 1U << 24;

enum class Wanted : std::uint8_t { kNumber, kText, kFlags };
struct Known {
  std::string_view name;
  Wanted wanted;
};
constexpr std::array<Known, 16> kKnown = {{{"is_cpu_op", Wanted::kNumber},
                                           {"num_ops", Wanted::kNumber},
                                           {"tensor_size", Wanted::kNumber},
                                           {"comm_type", Wanted::kNumber},
                                           {"comm_size", Wanted::kNumber},
                                           {"comm_src", Wanted::kNumber},
                                           {"comm_dst", Wanted::kNumber},
                                           {"comm_tag", Wanted::kNumber},
                                           {"comm_priority", Wanted::kNumber},
                                           {"root_rank", Wanted::kNumber},
                                           {"duration_ps", Wanted::kNumber},
                                           {"pg_name", Wanted::kText},
                                           {"memory_tier", Wanted::kText},
                                           {"engine_stream", Wanted::kText},
                                           {"involved_dim", Wanted::kFlags},
                                           {"tensor_loc", Wanted::kNumber}}};

std::optional<std::uint32_t> npu_of(const std::string& path) {
  if (!path.ends_with(".et")) return std::nullopt;
  const std::size_t dot = path.rfind('.', path.size() - 4);
  if (dot == std::string::npos) return std::nullopt;
  std::uint32_t npu = 0;
  const char* end = path.data() + path.size() - 3;
  const auto result = std::from_chars(path.data() + dot + 1, end, npu);
  return result.ec == std::errc() && result.ptr == end ? std::optional(npu) : std::nullopt;
}

// Also of attributes that no executor reads on this type of node.
std::string wrong_type(const chakra::Attribute& attribute) {
  for (const Known& known : kKnown) {
    if (attribute.name != known.name) continue;
    bool sound = false;
    try {
      sound = known.wanted == Wanted::kNumber ? attribute.unsigned_value().has_value()
              : known.wanted == Wanted::kText ? attribute.string_value().has_value()
                                              : attribute.number_list().has_value();
    } catch (const chakra::WireError&) {
    }
    if (sound) return "";
    constexpr std::array<const char*, 3> expected = {"a whole number of 0 or more", "a string",
                                                     "a list of true and false"};
    return std::string(known.name) + " is a " +
           std::string(chakra::encoding_name(attribute.encoding, attribute.list)) +
           (known.wanted == Wanted::kNumber && attribute.is_integer() ? " below 0" : "") + "; " +
           expected[static_cast<std::size_t>(known.wanted)] + " was expected";
  }
  return "";
}

}  // namespace

Verdict validate(const std::string& path) {
  Verdict verdict;
  chakra::FieldRules rules;
  rules.upstream = false;
  rules.npus = kAnyNpu;
  const std::optional<std::uint32_t> npu = npu_of(path);
  rules.any_rank = !npu;
  chakra::Reader reader(path);
  chakra::Dependencies dependencies;
  chakra::Node node;
  const auto complain = [&](const std::string& sentence) {
    if (verdict.problems.size() < kMost) verdict.problems.push_back(sentence);
  };
  while (reader.next(node)) {
    ++verdict.nodes;
    dependencies.add(node);
    bool typed = true;
    for (const chakra::Attribute& attribute : node.attributes) {
      const std::string wrong = wrong_type(attribute);
      typed = typed && wrong.empty();
      if (!wrong.empty()) complain(chakra::place_of(node, path) + wrong);
    }
    if (!typed) continue;
    try {
      chakra::read_fields(node, path, npu.value_or(0), rules);
    } catch (const model::InputError& error) {
      complain(error.what());
    }
  }
  dependencies.resolve();
  verdict.dependencies = dependencies.count();
  if (verdict.problems.size() < kMost) {
    for (const std::string& problem : dependencies.problems(kMost - verdict.problems.size())) {
      complain(path + ": " + problem);
    }
  }
  return verdict;
}

}  // namespace astra_sim::cli
