#include "formats/text/json.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

constexpr int kMaxDepth = 200;

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Json document() {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") at_ = line_start_ = 3;
    Json value = parse(0);
    blanks();
    if (at_ < text_.size()) fail("nothing may follow the JSON value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw model::InputError(name_ + ":" + std::to_string(line_) + ":" +
                            std::to_string(at_ - line_start_ + 1) + ": " + what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void blanks() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  void expect(char c, const char* where) {
    blanks();
    if (peek() != c) fail(std::string("expected '") + c + "' " + where);
    ++at_;
  }

  bool literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json parse(int depth) {
    if (depth > kMaxDepth) fail("values are nested more than 200 deep");
    blanks();
    Json value;
    value.line = line_;
    value.column = static_cast<int>(at_ - line_start_) + 1;
    switch (peek()) {
      case '{':
        object(value, depth);
        return value;
      case '[':
        array(value, depth);
        return value;
      case '"':
        value.kind = Json::Kind::kString;
        value.text = string();
        return value;
      default:
        break;
    }
    if (literal("null")) return value;
    const bool yes = literal("true");
    if (yes || literal("false")) {
      value.kind = Json::Kind::kBoolean;
      value.boolean = yes;
      return value;
    }
    number(value);
    return value;
  }

  void object(Json& value, int depth) {
    value.kind = Json::Kind::kObject;
    ++at_;
    blanks();
    if (peek() == '}') {
      ++at_;
      return;
    }
    for (;;) {
      blanks();
      if (peek() != '"') fail("expected a quoted key");
      std::string key = string();
      expect(':', "after a key");
      value.members.emplace_back(std::move(key), parse(depth + 1));
      blanks();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect('}', "or ',' in an object");
      return;
    }
  }

  void array(Json& value, int depth) {
    value.kind = Json::Kind::kArray;
    ++at_;
    blanks();
    if (peek() == ']') {
      ++at_;
      return;
    }
    for (;;) {
      value.items.push_back(parse(depth + 1));
      blanks();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect(']', "or ',' in an array");
      return;
    }
  }

  void number(Json& value) {
    const std::size_t begin = at_;
    auto digits = [&] {
      const std::size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) fail("expected a JSON value");
    };
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    bool integral = true;
    if (peek() == '.') {
      integral = false;
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integral = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    value.kind = Json::Kind::kNumber;
    value.number = std::strtod(std::string(first, last).c_str(), nullptr);
    value.integral = integral && std::from_chars(first, last, value.integer).ec == std::errc();
  }

  unsigned hex4() {
    unsigned code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || result.ptr != digits.data() + 4)
      fail("\\u needs four hexadecimal digits");
    at_ += 4;
    return code;
  }

  void put_utf8(std::string& out, unsigned code) {
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      out.push_back(static_cast<char>(0xc0 | (code >> 6)));
      out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    } else if (code < 0x10000) {
      out.push_back(static_cast<char>(0xe0 | (code >> 12)));
      out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
      out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    } else {
      out.push_back(static_cast<char>(0xf0 | (code >> 18)));
      out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3f)));
      out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
      out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }

  void escape(std::string& out) {
    constexpr std::string_view from = "\"\\/bfnrt";
    constexpr std::string_view to = "\"\\/\b\f\n\r\t";
    const char c = peek();
    const std::size_t known = c == '\0' ? std::string_view::npos : from.find(c);
    if (known != std::string_view::npos) {
      ++at_;
      out.push_back(to[known]);
      return;
    }
    if (c != 'u') fail("unknown escape in a string");
    ++at_;
    unsigned code = hex4();
    if (code >= 0xd800 && code < 0xdc00) {
      if (!literal("\\u")) fail("half of a surrogate pair");
      const unsigned low = hex4();
      if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    put_utf8(out, code);
  }

  std::string string() {
    std::string out;
    for (++at_;;) {
      if (at_ >= text_.size()) fail("a string is not closed");
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character stands in a string");
      ++at_;
      if (c == '\\') {
        escape(out);
      } else {
        out.push_back(c);
      }
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t line_start_ = 0;
  int line_ = 1;
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (member->first == key) return &member->second;
  }
  return nullptr;
}

std::string_view Json::kind_name() const {
  constexpr std::string_view names[] = {"null",     "true or false", "a number",
                                        "a string", "a list",        "an object"};
  return names[static_cast<std::size_t>(kind)];
}

Json parse_json(std::string_view text, const std::string& name) {
  return JsonParser(text, name).document();
}

Json read_json(const std::string& path) { return parse_json(read_text(path, "a JSON file"), path); }

std::string read_text(const std::string& path, const std::string& what) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr)
    throw model::InputError("cannot open " + path + " (" + what + "): " + std::strerror(errno));
  std::string text;
  char chunk[1 << 14];
  for (std::size_t got = 0; (got = std::fread(chunk, 1, sizeof chunk, file)) > 0;)
    text.append(chunk, got);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) throw model::InputError("cannot read " + path + " (" + what + " was expected)");
  constexpr std::string_view kByteOrderMark =
      "\xef\xbb\xbf";  // what some editors put in front of UTF-8
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

std::string place(const std::string& path, const Json& value) {
  return path + ":" + std::to_string(value.line) + ":" + std::to_string(value.column);
}

}  // namespace astra_sim::config
