// The elements of a long JSON file, one at a time.
#include "formats/chakra/json/from_json.h"
#include "formats/chakra/protobuf/byte_source.h"
#include "model/base/input_error.h"

namespace astra_sim::chakra {

using config::Json;
using model::InputError;

JsonElements::JsonElements(const std::string& path)
    : path_(path),
      source_(std::make_unique<ByteSource>(path)),
      buffer_(std::size_t{1} << 16, '\0') {}

JsonElements::~JsonElements() = default;

std::string JsonElements::place() const { return path_ + ": element " + std::to_string(count_); }

int JsonElements::get() {
  if (at_ == end_) {
    end_ = source_->read(buffer_.data(), buffer_.size());
    at_ = 0;
    if (end_ == 0) return -1;
  }
  return static_cast<unsigned char>(buffer_[at_++]);
}

int JsonElements::skip_space() {
  int c = get();
  while (c == ' ' || c == '\t' || c == '\n' || c == '\r') c = get();
  return c;
}

// From its first character to the end of its object; what is inside is for the parser to judge.
void JsonElements::take_element(char first) {
  element_.assign(1, first);
  int depth = 1;
  bool text = false, escaped = false;
  while (depth > 0) {
    const int c = get();
    if (c < 0) throw InputError(place() + " is cut off");
    element_.push_back(static_cast<char>(c));
    if (text) {
      if (escaped) {
        escaped = false;
      } else if (c == '\\') {
        escaped = true;
      } else if (c == '"') {
        text = false;
      }
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

bool JsonElements::next(Json& element) {
  int c = skip_space();
  if (!begun_) {
    begun_ = true;
    array_ = c == '[';
    if (array_) {
      c = skip_space();
      closed_ = c == ']';
    }
  } else if (array_ && !closed_) {
    closed_ = c == ']';
    if (c < 0) throw InputError(path_ + ": the list is cut off");
    if (!closed_ && c != ',') throw InputError(place() + " is followed by neither \",\" nor \"]\"");
    if (!closed_) c = skip_space();
  }
  if (closed_ && c == ']') c = skip_space();
  if (c < 0) {
    if (array_ && !closed_) throw InputError(path_ + ": the list is cut off");
    return false;
  }
  ++count_;
  if (closed_ || c != '{') throw InputError(place() + ": an object was expected");
  take_element('{');
  element = config::parse_json(element_, place());
  return true;
}

}  // namespace astra_sim::chakra
