#include "formats/chakra/protobuf/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/base/input_error.h"
#ifdef ASTRA_ZLIB
#include <zlib.h>
#endif

namespace astra_sim::chakra {

using model::InputError;

ByteSource::ByteSource(const std::string& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw InputError("cannot open " + path + ": " + std::strerror(errno));
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || S_ISDIR(status.st_mode)) {
    ::close(descriptor_);
    throw InputError(path + " is no file that can be read; a Chakra trace (.et) was expected");
  }
  unsigned char magic[2] = {0, 0};
  if (S_ISREG(status.st_mode) && ::pread(descriptor_, magic, 2, 0) == 2 && magic[0] == 0x1f &&
      magic[1] == 0x8b) {
#ifdef ASTRA_ZLIB
    gzip_ = ::gzdopen(descriptor_, "rb");
    if (gzip_ == nullptr) {
      ::close(descriptor_);
      throw InputError("cannot decompress " + path);
    }
    return;
#else
    ::close(descriptor_);
    throw InputError(
        path + " is gzip and this build has no zlib; decompress it (gunzip) or build with zlib");
#endif
  }
  size_hint_ = static_cast<std::size_t>(status.st_size);
}

ByteSource::~ByteSource() {
#ifdef ASTRA_ZLIB
  if (gzip_ != nullptr) {
    ::gzclose(static_cast<gzFile>(gzip_));
    return;
  }
#endif
  ::close(descriptor_);
}

std::size_t ByteSource::read(char* out, std::size_t bytes) {
#ifdef ASTRA_ZLIB
  if (gzip_ != nullptr) {
    const int got = ::gzread(static_cast<gzFile>(gzip_), out, static_cast<unsigned>(bytes));
    if (got < 0) throw InputError(path_ + " is damaged gzip");
    return static_cast<std::size_t>(got);
  }
#endif
  for (;;) {
    const ssize_t got = ::read(descriptor_, out, bytes);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw InputError("cannot read " + path_ + ": " + std::strerror(errno));
  }
}

}  // namespace astra_sim::chakra
