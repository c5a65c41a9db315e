// The protobuf wire format: varints, tags and length-delimited fields, read from memory and
// appended to it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace astra_sim::chakra {

// Bytes that are no protobuf; the reader turns it into a sentence with file and record.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class Cursor {
 public:
  Cursor(const char* begin, const char* end) : at_(begin), end_(end) {}
  explicit Cursor(std::string_view bytes) : Cursor(bytes.data(), bytes.data() + bytes.size()) {}

  bool done() const { return at_ == end_; }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) throw WireError("a varint is cut off");
      const auto byte = static_cast<std::uint8_t>(*at_++);
      if (shift < 64) value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw WireError("a varint is longer than 10 bytes");
  }

  template <class Fixed>
  Fixed fixed() {
    if (static_cast<std::size_t>(end_ - at_) < sizeof(Fixed))
      throw WireError("a fixed-width field is cut off");
    Fixed value;  // little-endian hosts only, as the rest of the wire format assumes here
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string_view bytes() {
    const std::uint64_t length = varint();
    if (length > static_cast<std::uint64_t>(end_ - at_))
      throw WireError("a field is longer than its record");
    const std::string_view value(at_, static_cast<std::size_t>(length));
    at_ += length;
    return value;
  }

  void skip(WireType type) {
    switch (type) {
      case WireType::kVarint:
        varint();
        return;
      case WireType::kFixed64:
        fixed<std::uint64_t>();
        return;
      case WireType::kBytes:
        bytes();
        return;
      case WireType::kFixed32:
        fixed<std::uint32_t>();
        return;
    }
    throw WireError("wire type " + std::to_string(static_cast<int>(type)) + " does not exist");
  }

 private:
  const char* at_;
  const char* end_;
};

inline std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
inline std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
inline void put_tag(std::string& out, unsigned field, WireType type) {
  put_varint(out, (field << 3) | static_cast<unsigned>(type));
}
inline void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_tag(out, field, WireType::kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}
template <class Fixed>
void put_fixed(std::string& out, Fixed value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof value);
}

}  // namespace astra_sim::chakra
