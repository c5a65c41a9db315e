#include "formats/text/fields.h"

#include <algorithm>
#include <cmath>

#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

using model::InputError;

namespace {
constexpr std::int64_t kMost =
    std::int64_t{1} << 50;  // no count or delay of a file needs more; sums stay in 64 bits
}

Fields::Fields(const std::string& path, const Json& object) : path_(path), object_(object) {
  if (object.kind != Json::Kind::kObject) {
    throw InputError(place(path, object) + ": expected an object, found " +
                     std::string(object.kind_name()));
  }
}

void Fields::wrong_type(std::string_view key, const Json& value, const char* expected) const {
  throw InputError(place(path_, value) + ": " + std::string(key) + " is " +
                   std::string(value.kind_name()) + "; " + expected + " was expected");
}

void Fields::fail(std::string_view key, const std::string& what) const {
  const Json* value = object_.find(key);
  throw InputError((value == nullptr ? path_ : place(path_, *value)) + ": " + std::string(key) +
                   " " + what);
}

std::optional<std::int64_t> Fields::integer(std::string_view key, std::int64_t low) const {
  const Json* value = object_.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != Json::Kind::kNumber) wrong_type(key, *value, "a whole number");
  // Upstream converts: a fraction is cut off.
  if (!value->integral && !(std::fabs(value->number) < 9e18)) fail(key, "is out of range");
  const std::int64_t whole =
      value->integral ? value->integer : static_cast<std::int64_t>(value->number);
  if (whole < low)
    fail(key, "is " + std::to_string(whole) + "; " + std::to_string(low) + " or more was expected");
  if (whole > kMost) fail(key, "is " + std::to_string(whole) + "; at most 2^50 was expected");
  return whole;
}

std::optional<double> Fields::real(std::string_view key) const {
  const Json* value = object_.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != Json::Kind::kNumber) wrong_type(key, *value, "a number");
  if (!(value->number >= 0) || !std::isfinite(value->number)) fail(key, "has to be 0 or more");
  return value->number;
}

std::optional<bool> Fields::flag(std::string_view key) const {
  const Json* value = object_.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == Json::Kind::kBoolean) return value->boolean;
  if (value->kind != Json::Kind::kNumber) wrong_type(key, *value, "0 or 1");
  return value->number != 0;
}

std::optional<std::string> Fields::text(std::string_view key) const {
  const Json* value = object_.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != Json::Kind::kString) wrong_type(key, *value, "a string");
  return value->text;
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view key) const {
  const Json* value = object_.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != Json::Kind::kArray) wrong_type(key, *value, "a list of strings");
  std::vector<std::string> found;
  for (const Json& item : value->items) {
    if (item.kind != Json::Kind::kString) wrong_type(key, item, "a list of strings");
    found.push_back(item.text);
  }
  return found;
}

std::optional<std::size_t> Fields::choice(std::string_view key,
                                          std::span<const std::string_view> words) const {
  const std::optional<std::string> word = text(key);
  if (!word) return std::nullopt;
  const auto found = std::find(words.begin(), words.end(), *word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string known;
  for (const std::string_view candidate : words)
    known.append(known.empty() ? "" : ", ").append(candidate);
  fail(key, "is \"" + *word + "\"; one of " + known + " was expected" + nearest(*word, words));
}

void Fields::note_unknown(std::span<const std::string_view> known,
                          std::vector<std::string>& notes) const {
  for (const auto& [key, value] : object_.members) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    notes.push_back(place(path_, value) + ": \"" + key + "\" is not a known field and is ignored" +
                    nearest(key, known));
  }
}

}  // namespace astra_sim::config
