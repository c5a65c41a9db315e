// A file that is written piece by piece; what could not be written is told once, at its end.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "model/base/input_error.h"

namespace astra_sim::cli {

class TextFile {
 public:
  // Throws model::InputError.
  explicit TextFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (file_ == nullptr)
      throw model::InputError("cannot write " + path + ": " + std::strerror(errno));
  }
  ~TextFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  void put(std::string_view text) { std::fwrite(text.data(), 1, text.size(), file_); }
  void close() {
    const bool failed = std::ferror(file_) != 0;
    if (std::fclose(std::exchange(file_, nullptr)) != 0 || failed)
      throw model::InputError("cannot write " + path_);
  }

 private:
  std::string path_;
  std::FILE* file_;
};

}  // namespace astra_sim::cli
