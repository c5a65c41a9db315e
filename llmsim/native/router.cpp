#include "router.h"

#include <stdexcept>

namespace llmsim {

namespace {

// splitmix64: a counter-based generator, so the draw of request r depends on (seed, r) alone.
std::uint64_t draw(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t x = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class RoundRobin final : public Router {
 public:
  explicit RoundRobin(std::size_t num_models) : next_(num_models, 0) {}
  std::size_t route(RequestId, std::span<Group* const> candidates) override {
    std::size_t& next = next_[static_cast<std::size_t>(candidates[0]->config().model)];
    return next++ % candidates.size();
  }

 private:
  std::vector<std::size_t> next_;
};

class Random final : public Router {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::size_t route(RequestId request, std::span<Group* const> candidates) override {
    const auto wide = static_cast<unsigned __int128>(draw(seed_, static_cast<std::uint64_t>(request)));
    return static_cast<std::size_t>((wide * candidates.size()) >> 64);
  }

 private:
  std::uint64_t seed_;
};

// LLMServingSim's load: four times the waiting plus the running requests; the lowest index wins a tie.
class LeastLoaded final : public Router {
 public:
  std::size_t route(RequestId, std::span<Group* const> candidates) override {
    std::size_t best = 0;
    for (std::size_t i = 1; i < candidates.size(); ++i)
      if (load(*candidates[i]) < load(*candidates[best])) best = i;
    return best;
  }

 private:
  static std::int64_t load(const Group& group) {
    return 4 * static_cast<std::int64_t>(group.num_waiting()) + group.num_running();
  }
};

}  // namespace

std::unique_ptr<Router> make_router(const std::string& name, std::uint64_t seed, std::size_t num_models) {
  if (name == "RR") return std::make_unique<RoundRobin>(num_models);
  if (name == "RAND") return std::make_unique<Random>(seed);
  if (name == "LOAD") return std::make_unique<LeastLoaded>();
  throw std::invalid_argument("unknown router " + name);
}

}  // namespace llmsim
