#include "cli/tools.h"

#include <cstdio>

#include "chakra/reader.h"
#include "chakra/to_json.h"
#include "chakra/wire.h"
#include "chakra/writer.h"
#include "model/input_error.h"

namespace astra_sim::cli {

namespace {

using model::InputError;

// A list in the file may still be damaged inside: it is decoded only here.
template <class Record>
std::string json_of(const Record& record, const std::string& path) {
    try {
        return chakra::to_json(record);
    } catch (const chakra::WireError& error) {
        throw InputError(path + " holds an attribute that cannot be read: " + error.what());
    }
}

void to_json(const std::string& path) {
    chakra::Reader reader(path);
    std::printf("[%s", json_of(reader.metadata(), path).c_str());
    chakra::Node node;
    while (reader.next(node)) std::printf(",\n %s", json_of(node, path).c_str());
    std::printf("]\n");
}

void copy(const std::string& from, const std::string& to) {
    if (from == to) throw InputError("copy: " + from + " cannot be written while it is read");
    chakra::Reader reader(from);
    chakra::Writer writer(to, reader.metadata());
    chakra::Node node;
    while (reader.next(node)) writer.write(node);
    writer.close();
}

}  // namespace

bool run_tool(const std::vector<std::string>& arguments, int& exit_code) {
    if (arguments.empty() || (arguments[0] != "to-json" && arguments[0] != "copy")) return false;
    const bool copies = arguments[0] == "copy";
    if (arguments.size() != (copies ? 3u : 2u)) {
        throw InputError(std::string("usage: astra-sim ") + (copies ? "copy FROM.et TO.et" : "to-json FILE.et"));
    }
    if (copies) {
        copy(arguments[1], arguments[2]);
    } else {
        to_json(arguments[1]);
    }
    exit_code = 0;
    return true;
}

std::string tools_usage() {
    return "\n"
           "  astra-sim to-json FILE.et           the trace as a JSON array: metadata, then the nodes\n"
           "  astra-sim copy FROM.et TO.et        reads a trace (gzip too) and writes it again, plain\n";
}

}  // namespace astra_sim::cli
