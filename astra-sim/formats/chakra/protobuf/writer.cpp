#include "formats/chakra/protobuf/writer.h"

#include <cerrno>
#include <cstring>

#include "model/base/input_error.h"
#ifdef ASTRA_ZLIB
#include <zlib.h>
#endif

namespace astra_sim::chakra {

namespace {
constexpr std::size_t kFlushBytes = std::size_t{1} << 18;
}

Writer::Writer(const std::string& path, const Metadata& metadata, bool gzip) : path_(path) {
  if (gzip) {
#ifdef ASTRA_ZLIB
    gzip_ = ::gzopen(path.c_str(), "wb");
#else
    throw model::InputError("cannot write " + path +
                            ": this build has no zlib, so it cannot write gzip");
#endif
  } else {
    file_ = std::fopen(path.c_str(), "wb");
  }
  if (file_ == nullptr && gzip_ == nullptr)
    throw model::InputError("cannot write " + path + ": " + std::strerror(errno));
  encode_metadata(metadata, pending_);
}

Writer::~Writer() {
  if (file_ != nullptr) std::fclose(file_);
#ifdef ASTRA_ZLIB
  if (gzip_ != nullptr) ::gzclose(static_cast<gzFile>(gzip_));
#endif
}

void Writer::write(const Node& node) {
  encode_node(node, pending_);
  if (pending_.size() >= kFlushBytes) flush();
}

void Writer::close() {
  flush();
  bool failed = false;
  if (file_ != nullptr) failed = std::fclose(file_) != 0;
#ifdef ASTRA_ZLIB
  if (gzip_ != nullptr) failed = ::gzclose(static_cast<gzFile>(gzip_)) != Z_OK;
#endif
  file_ = nullptr;
  gzip_ = nullptr;
  if (failed) throw model::InputError("cannot write " + path_ + ": " + std::strerror(errno));
}

void Writer::flush() {
  bool written = pending_.empty();
  if (file_ != nullptr)
    written = std::fwrite(pending_.data(), 1, pending_.size(), file_) == pending_.size();
#ifdef ASTRA_ZLIB
  if (gzip_ != nullptr && !pending_.empty()) {
    const auto bytes = static_cast<unsigned>(pending_.size());
    written =
        ::gzwrite(static_cast<gzFile>(gzip_), pending_.data(), bytes) == static_cast<int>(bytes);
  }
#endif
  if (!written) throw model::InputError("cannot write " + path_ + ": " + std::strerror(errno));
  pending_.clear();
}

}  // namespace astra_sim::chakra
