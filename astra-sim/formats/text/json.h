// A JSON reader (RFC 8259) that keeps the place of every value, so that errors can name line and
// column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace astra_sim::config {

struct Json {
  enum class Kind : std::uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  bool integral =
      false;  // a number without fraction and exponent that fits into 64 bits: `integer` holds it
  std::int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order of the file
  int line = 0;
  int column = 0;

  // The last member of that name (as upstream's parser takes it), or null.
  const Json* find(std::string_view key) const;
  std::string_view kind_name() const;
};

// `name` is the file's name for messages. Throws model::InputError with name:line:column.
Json parse_json(std::string_view text, const std::string& name);
// Reads and parses a file.
Json read_json(const std::string& path);
// The whole of a file; throws model::InputError where it cannot be read. `what` says what was
// expected.
std::string read_text(const std::string& path, const std::string& what);
// A string as a JSON literal, quotes included.
std::string quoted(std::string_view text);
// "path:line:column"
std::string place(const std::string& path, const Json& value);

}  // namespace astra_sim::config
