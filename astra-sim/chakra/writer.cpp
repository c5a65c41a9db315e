#include "chakra/writer.h"

#include <cerrno>
#include <cstring>

#include "model/input_error.h"

namespace astra_sim::chakra {

namespace {
constexpr std::size_t kFlushBytes = std::size_t{1} << 18;
}

Writer::Writer(const std::string& path, const Metadata& metadata) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (file_ == nullptr) throw model::InputError("cannot write " + path + ": " + std::strerror(errno));
    encode_metadata(metadata, pending_);
}

Writer::~Writer() {
    if (file_ != nullptr) std::fclose(file_);
}

void Writer::write(const Node& node) {
    encode_node(node, pending_);
    if (pending_.size() >= kFlushBytes) flush();
}

void Writer::close() {
    flush();
    const int failed = std::fclose(file_);
    file_ = nullptr;
    if (failed != 0) throw model::InputError("cannot write " + path_ + ": " + std::strerror(errno));
}

void Writer::flush() {
    if (std::fwrite(pending_.data(), 1, pending_.size(), file_) != pending_.size()) {
        throw model::InputError("cannot write " + path_ + ": " + std::strerror(errno));
    }
    pending_.clear();
}

}  // namespace astra_sim::chakra
