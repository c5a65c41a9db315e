#include "formats/chakra/protobuf/reader.h"

#include <algorithm>
#include <cstring>

#include "formats/chakra/protobuf/byte_source.h"
#include "formats/chakra/wire.h"
#include "model/base/input_error.h"

namespace astra_sim::chakra {

namespace {
constexpr std::size_t kBufferBytes = std::size_t{1} << 17;
constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 31;  // protobuf's own limit on a message
}  // namespace

Reader::Reader(const std::string& path) : path_(path), source_(std::make_unique<ByteSource>(path)) {
  const std::size_t hint = source_->size_hint();
  capacity_ = hint == 0 ? kBufferBytes : std::min(hint + 1, kBufferBytes);
  buffer_ = std::unique_ptr<char[]>(new char[capacity_]);
  std::string_view record;
  if (!next_record(record)) fail("is empty; a metadata record and nodes were expected");
  try {
    decode_metadata(record, metadata_);
  } catch (const WireError& error) {
    fail("is no Chakra trace: in its metadata record " + std::string(error.what()));
  }
}

Reader::~Reader() = default;

bool Reader::next(Node& node) {
  std::string_view record;
  if (!next_record(record)) return false;
  if (record.empty()) {
    // Python's reader takes an empty record for the end: padding with zeros is let through,
    // anything after it is not.
    if (only_zeros_left()) return false;
    fail("record " + std::to_string(records_) + " is empty and others follow it");
  }
  try {
    decode_node(record, node);
  } catch (const WireError& error) {
    fail("record " + std::to_string(records_) + " is no Chakra node: " + error.what());
  }
  return true;
}

bool Reader::next_record(std::string_view& record) {
  std::uint64_t length = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (!fill(1)) {
      if (shift == 0) return false;
      fail("is cut off inside the length of record " + std::to_string(records_ + 1));
    }
    const auto byte = static_cast<std::uint8_t>(buffer_[at_++]);
    length |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
    if (shift == 28) fail("has no valid length before record " + std::to_string(records_ + 1));
  }
  ++records_;
  if (length > kMaxRecordBytes)
    fail("record " + std::to_string(records_) + " claims " + std::to_string(length) + " bytes");
  if (!fill(static_cast<std::size_t>(length))) {
    fail("is cut off inside record " + std::to_string(records_) + " of " + std::to_string(length) +
         " bytes");
  }
  record = std::string_view(buffer_.get() + at_, static_cast<std::size_t>(length));
  at_ += static_cast<std::size_t>(length);
  return true;
}

bool Reader::fill(std::size_t bytes) {
  if (end_ - at_ >= bytes) return true;
  std::memmove(buffer_.get(), buffer_.get() + at_, end_ - at_);
  end_ -= at_;
  at_ = 0;
  while (end_ < bytes) {
    if (end_ == capacity_) {
      // Grown as bytes really come: a damaged length must not allocate gigabytes.
      const std::size_t larger = std::max(capacity_ * 2, kBufferBytes);
      std::unique_ptr<char[]> buffer(new char[larger]);
      std::memcpy(buffer.get(), buffer_.get(), end_);
      buffer_ = std::move(buffer);
      capacity_ = larger;
    }
    const std::size_t got = source_->read(buffer_.get() + end_, capacity_ - end_);
    if (got == 0) return false;
    end_ += got;
  }
  return true;
}

bool Reader::only_zeros_left() {
  while (fill(1)) {
    if (buffer_[at_++] != 0) return false;
  }
  return true;
}

void Reader::fail(const std::string& what) const { throw model::InputError(path_ + " " + what); }

}  // namespace astra_sim::chakra
