#include "cli/tools/external.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "formats/chakra/protobuf/reader.h"
#include "formats/chakra/protobuf/writer.h"
#include "formats/config/topology_file.h"
#include "formats/text/json.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

using model::InputError;
namespace fs = std::filesystem;

// A folder that lives as long as this.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "astra-sim-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw InputError("cannot make a folder like " + name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw InputError("cannot write " + path);
}

// Plain, whatever the source is: upstream reads no gzip.
void write_traces(const std::string& prefix, const Folder& folder, std::uint32_t npus) {
  for (std::uint32_t npu = 0; npu < npus; ++npu) {
    const std::string end = "." + std::to_string(npu) + ".et";
    chakra::Reader reader(prefix + end);
    chakra::Writer writer(folder / ("workload" + end), reader.metadata());
    chakra::Node node;
    while (reader.next(node)) writer.write(node);
    writer.close();
  }
}

std::string number(double value) {
  std::array<char, 64> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string network_yaml(const config::NetworkConfig& network) {
  if (network.file != nullptr && network.file->dimensions.empty()) {
    throw InputError("ASTRA-sim knows dimensions only; " + network.file->path +
                     " lists devices and links");
  }
  constexpr std::array<const char*, 3> shapes = {"Ring", "FullyConnected", "Switch"};
  std::array<std::string, 4> rows;
  for (const config::NetworkDimension& one : network.dimensions) {
    const std::array<std::string, 4> cells = {
        shapes[static_cast<std::size_t>(one.shape)], std::to_string(one.npus),
        number(network.binary_gb_per_s(one)), number(one.latency_ns)};
    for (std::size_t row = 0; row < rows.size(); ++row)
      rows[row] += (rows[row].empty() ? "" : ", ") + cells[row];
  }
  constexpr std::array<const char*, 4> keys = {"topology", "npus_count", "bandwidth", "latency"};
  std::string text;
  for (std::size_t row = 0; row < rows.size(); ++row)
    text += std::string(keys[row]) + ": [ " + rows[row] + " ]\n";
  return text;
}

std::vector<std::string> arguments(const std::string& binary, const CommandLine& line,
                                   const Folder& folder) {
  std::vector<std::string> out = {
      binary,
      "--workload-configuration=" + (folder / "workload"),
      "--system-configuration=" + line.system,
      "--network-configuration=" + (folder / "network.yml"),
      "--remote-memory-configuration=" + line.memory,
      "--comm-group-configuration=" + line.groups,
      "--logging-folder=" + (folder / "log"),
      "--num-queues-per-dim=" + std::to_string(line.queues_per_dimension),
      "--injection-scale=" + number(line.injection_scale)};
  if (line.rendezvous) out.push_back("--rendezvous-protocol=true");
  return out;
}

// What the program prints, on both streams together.
std::string output_of(const std::vector<std::string>& command, int& status) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw InputError(std::string("no pipe: ") + std::strerror(errno));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw InputError(std::string("no process: ") + std::strerror(errno));
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execv(words[0], words.data());
    _exit(127);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  ::close(ends[0]);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return text;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of("\n\r ");
  if (end == std::string::npos) return "nothing";
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

// The number that follows `word` in `line`; false where there is none.
bool number_after(const std::string& line, const std::string& word, std::int64_t& out) {
  const std::size_t at = line.find(word);
  if (at == std::string::npos) return false;
  const char* begin = line.data() + at + word.size();
  return std::from_chars(begin, line.data() + line.size(), out).ec == std::errc();
}

void take_line(const std::string& line, ExternalReport& report) {
  const std::size_t at = line.find("sys[");
  std::int64_t npu = -1;
  if (at == std::string::npos || !number_after(line, "sys[", npu)) return;
  if (npu < 0 || static_cast<std::size_t>(npu) >= report.npus.size()) return;
  ExternalNpu& one = report.npus[static_cast<std::size_t>(npu)];
  const std::size_t close = line.find(']', at);
  if (close == std::string::npos) return;
  if (line.compare(close, 11, "] finished,") == 0) {
    number_after(line, "finished, ", one.finish_ns);
    number_after(line, "exposed communication ", one.exposed_comm_ns);
  } else if (line.compare(close, 3, "], ") == 0) {
    const std::size_t colon = line.find(": ", close);
    if (colon == std::string::npos) return;
    const std::size_t end = line.find_last_not_of("\r ");
    one.statistics.emplace_back(line.substr(close + 3, colon - close - 3),
                                line.substr(colon + 2, end - colon - 1));
  }
}

}  // namespace

ExternalReport parse_lines(const std::string& text, std::uint32_t npus) {
  ExternalReport report;
  report.npus.resize(npus);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    take_line(text.substr(at, end - at), report);
    at = end + 1;
  }
  for (const ExternalNpu& one : report.npus) report.unfinished += one.finish_ns < 0 ? 1 : 0;
  return report;
}

ExternalReport run_external(const std::string& binary, const CommandLine& line,
                            const Files& files) {
  if (::access(binary.c_str(), X_OK) != 0 || fs::is_directory(binary)) {
    throw InputError("--network-backend=external: \"" + binary +
                     "\" is no program; the path of an ASTRA-sim binary "
                     "was expected");
  }
  if (!files.memory.tiers.empty()) {
    throw InputError(files.memory.path +
                     ": tiers are ours; an external ASTRA-sim knows memory-type");
  }
  const Folder folder;
  const std::uint32_t npus = files.network.npus();
  write_traces(line.workload, folder, npus);
  write_text(folder / "network.yml", network_yaml(files.network));
  int status = 0;
  const std::string text = output_of(arguments(binary, line, folder), status);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw InputError(binary +
                     (WIFSIGNALED(status)
                          ? " was ended by signal " + std::to_string(WTERMSIG(status))
                          : " ended with exit code " + std::to_string(WEXITSTATUS(status))) +
                     "; its last words: " + last_line(text));
  }
  return parse_lines(text, npus);
}

std::string as_lines(const ExternalReport& report) {
  std::string finished, figures;
  for (std::size_t npu = 0; npu < report.npus.size(); ++npu) {
    const ExternalNpu& one = report.npus[npu];
    const std::string name = "sys[" + std::to_string(npu) + "]";
    if (one.finish_ns >= 0) {
      finished += "[workload] [info] " + name + " finished, " + std::to_string(one.finish_ns) +
                  " cycles, exposed communication " + std::to_string(one.exposed_comm_ns) +
                  " cycles.\n";
    }
    for (const auto& [label, value] : one.statistics) {
      figures += "[statistics] [info] " + name + ", " + label + ": " + value + "\n";
    }
  }
  return finished + figures;
}

std::string as_json(const ExternalReport& report) {
  std::string npus;
  for (std::size_t npu = 0; npu < report.npus.size(); ++npu) {
    const ExternalNpu& one = report.npus[npu];
    const bool finished = one.finish_ns >= 0;
    std::string figures;
    for (const auto& [label, value] : one.statistics) {
      figures +=
          (figures.empty() ? "" : ", ") + config::quoted(label) + ": " + config::quoted(value);
    }
    npus += (npu == 0 ? "\n  " : ",\n  ") + std::string("{\"npu\": ") + std::to_string(npu) +
            ", \"finished\": " + (finished ? "true" : "false") +
            ", \"finish_ns\": " + (finished ? std::to_string(one.finish_ns) : "null") +
            ", \"exposed_comm_ns\": " + (finished ? std::to_string(one.exposed_comm_ns) : "null") +
            ", \"statistics\": {" + figures + "}}";
  }
  return "{\"rules\": \"external\", \"time_unit\": \"ns\", \"unfinished_npus\": " +
         std::to_string(report.unfinished) + ",\n \"npus\": [" + npus + "]}\n";
}

}  // namespace astra_sim::cli
