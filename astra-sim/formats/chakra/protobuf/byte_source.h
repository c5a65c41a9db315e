// The bytes of a file, decompressed where it is gzip.
#pragma once

#include <cstddef>
#include <string>

namespace astra_sim::chakra {

class ByteSource {
 public:
  explicit ByteSource(const std::string& path);  // throws model::InputError
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Up to `bytes`; 0 at the end. Throws model::InputError.
  std::size_t read(char* out, std::size_t bytes);
  // Size of the file on disk, 0 where it is compressed or unknown.
  std::size_t size_hint() const { return size_hint_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  void* gzip_ = nullptr;
  std::size_t size_hint_ = 0;
};

}  // namespace astra_sim::chakra
