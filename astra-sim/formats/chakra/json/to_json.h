// Records of a Chakra file as JSON, in protobuf's own mapping (field names as in the schema).
#pragma once

#include <string>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

// One object; 64-bit integers are strings, bytes are base64, absent fields are left out. Throw
// WireError.
std::string to_json(const Node& node);
std::string to_json(const Metadata& metadata);

}  // namespace astra_sim::chakra
