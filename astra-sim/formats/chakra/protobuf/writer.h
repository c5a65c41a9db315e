// Writes a Chakra file, plain or gzip: metadata, then nodes in the order given.
#pragma once

#include <cstdio>
#include <string>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

class Writer {
 public:
  // Throws model::InputError where the file cannot be made.
  Writer(const std::string& path, const Metadata& metadata, bool gzip = false);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write(const Node& node);
  void close();  // writes what is left; throws model::InputError where the disk refuses

 private:
  void flush();

  std::string path_;
  std::FILE* file_ = nullptr;
  void* gzip_ = nullptr;
  std::string pending_;
};

}  // namespace astra_sim::chakra
