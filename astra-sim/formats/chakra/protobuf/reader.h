// Reads a Chakra file record by record: memory is one buffer, however long the file; plain or gzip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

class ByteSource;

class Reader {
 public:
  // Throws model::InputError naming the file where it cannot be read or begins with no metadata
  // record.
  explicit Reader(const std::string& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Valid until the first call of next().
  const Metadata& metadata() const { return metadata_; }

  // False at the end. What `node` views is valid until the next call. Throws model::InputError
  // naming file and record.
  bool next(Node& node);

  const std::string& path() const { return path_; }

 private:
  bool next_record(std::string_view& record);
  bool fill(
      std::size_t bytes);  // makes that many bytes available from at_; false at the end of the file
  bool only_zeros_left();
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::uint64_t records_ = 0;
  Metadata metadata_;
};

}  // namespace astra_sim::chakra
