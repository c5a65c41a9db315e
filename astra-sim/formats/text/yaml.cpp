#include "formats/text/yaml.h"

#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class YamlParser {
 public:
  YamlParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<YamlEntry> document() {
    std::string line;
    while (next_line(line)) {
      const std::string_view content = trim(line);
      if (content.empty() || content == "---" || content[0] == '%') continue;
      if (content == "...") break;
      if (content[0] == '-' && (content.size() == 1 || content[1] == ' ')) {
        block_item(trim(content.substr(1)));
      } else {
        if (line[0] == ' ' || line[0] == '\t') fail("nested keys are not understood here");
        entry(content);
      }
    }
    return std::move(entries_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw model::InputError(name_ + ":" + std::to_string(line_) + ": " + what);
  }

  // The next line without its comment.
  bool next_line(std::string& line) {
    if (at_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view raw = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    char quote = '\0';
    std::size_t length = 0;
    for (; length < raw.size(); ++length) {
      const char c = raw[length];
      if (quote != '\0') {
        if (c == quote) quote = '\0';
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '#' && (length == 0 || raw[length - 1] == ' ' || raw[length - 1] == '\t')) {
        break;
      }
    }
    line = raw.substr(0, length);
    return true;
  }

  std::string scalar(std::string_view text) {
    text = trim(text);
    if (text.empty()) fail("a value is missing");
    if (text[0] == '"' || text[0] == '\'') {
      if (text.size() < 2 || text.back() != text[0]) fail("a quote is not closed");
      return std::string(text.substr(1, text.size() - 2));
    }
    if (text.find_first_of("[]{}&*|>!") == 0)
      fail("only scalars and flat lists are understood here");
    return std::string(text);
  }

  void entry(std::string_view content) {
    std::size_t colon = content.find(':');
    while (colon != std::string_view::npos && colon + 1 < content.size() &&
           content[colon + 1] != ' ' && content[colon + 1] != '\t' && content[colon + 1] != '[') {
      colon = content.find(':', colon + 1);
    }
    if (colon == std::string_view::npos) fail("expected \"key: value\"");
    entries_.push_back({scalar(content.substr(0, colon)), {}, false, line_});
    const std::string_view value = trim(content.substr(colon + 1));
    if (value.empty()) {
      entries_.back().list = true;  // a block list follows
    } else if (value[0] == '[') {
      flow_list(std::string(value));
    } else {
      entries_.back().values.push_back(scalar(value));
    }
  }

  void block_item(std::string_view value) {
    if (entries_.empty() || !entries_.back().list) fail("a list item belongs to no key");
    entries_.back().values.push_back(scalar(value));
  }

  void flow_list(std::string text) {
    entries_.back().list = true;
    std::string line;
    while (text.find(']') == std::string::npos) {
      if (!next_line(line)) fail("a list is not closed");
      text += ' ' + line;
    }
    const std::size_t close = text.find(']');
    if (!trim(std::string_view(text).substr(close + 1)).empty()) fail("nothing may follow a list");
    const std::string_view inside = trim(std::string_view(text).substr(1, close - 1));
    for (std::size_t at = 0; at < inside.size();) {
      const std::size_t comma = std::min(inside.find(',', at), inside.size());
      entries_.back().values.push_back(scalar(inside.substr(at, comma - at)));
      at = comma + 1;
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int line_ = 0;
  std::vector<YamlEntry> entries_;
};

}  // namespace

std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& name) {
  return YamlParser(text, name).document();
}

}  // namespace astra_sim::config
