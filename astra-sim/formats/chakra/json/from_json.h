// Records of a Chakra file from JSON: what to_json writes, read element by element.
#pragma once

#include <memory>
#include <string>

#include "formats/chakra/own_node.h"
#include "formats/text/json.h"

namespace astra_sim::chakra {

class ByteSource;

// The elements of a file that is one JSON array (or objects one after another, as Chakra's own tool
// writes them). Memory is one element, however long the file.
class JsonElements {
 public:
  explicit JsonElements(const std::string& path);
  ~JsonElements();
  JsonElements(const JsonElements&) = delete;
  JsonElements& operator=(const JsonElements&) = delete;

  // False at the end. Throws model::InputError naming file and element.
  bool next(config::Json& element);
  std::string place() const;  // "FILE: element 3"

 private:
  int get();
  int skip_space();
  void take_element(char first);

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::string element_;
  std::uint64_t count_ = 0;
  bool begun_ = false;
  bool array_ = false;
  bool closed_ = false;
};

// Fill a node or metadata (its `attributes` and `name`, the version) from protobuf's JSON mapping.
// `place` is for errors: model::InputError names it and the field.
void from_json(const config::Json& json, const std::string& place, OwnNode& node);
void metadata_from_json(const config::Json& json, const std::string& place, OwnNode& keeper,
                        Metadata& metadata);
// Whether the element is a node; metadata has a version, and no id or type.
bool is_node(const config::Json& json);

}  // namespace astra_sim::chakra
