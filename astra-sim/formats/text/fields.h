// Typed access to the fields of a JSON object: errors name file, line, column and field; unknown
// fields become notes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/text/json.h"

namespace astra_sim::config {

class Fields {
 public:
  // Throws model::InputError where `object` is no object.
  Fields(const std::string& path, const Json& object);

  // Empty where the field is absent; throw model::InputError where it has another type or is out of
  // range.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low) const;
  std::optional<double> real(std::string_view key) const;  // 0 or more
  std::optional<bool> flag(std::string_view key) const;    // true, false, or a number (0 is false)
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  // The place of a word among `words`.
  std::optional<std::size_t> choice(std::string_view key,
                                    std::span<const std::string_view> words) const;

  // A note for every field that is not in `known`.
  void note_unknown(std::span<const std::string_view> known, std::vector<std::string>& notes) const;
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;
  bool has(std::string_view key) const { return object_.find(key) != nullptr; }

 private:
  [[noreturn]] void wrong_type(std::string_view key, const Json& value, const char* expected) const;

  std::string path_;
  const Json& object_;
};

}  // namespace astra_sim::config
