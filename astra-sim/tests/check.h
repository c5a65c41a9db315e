// A few lines of test support: checks that count, exceptions that must come, and a reproducible
// generator.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace astra_sim::test {

inline int failures = 0;

template <class A, class B>
void check_equal(const A& a, const B& b, const char* what, const char* file, int line) {
  if (a == b) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: %s: %s is not %s\n", file, line, what, std::to_string(a).c_str(),
               std::to_string(b).c_str());
}

template <class Error, class Action>
void check_throws(Action action, const std::string& part, const char* file, int line) {
  std::string got = "nothing";
  try {
    action();
  } catch (const Error& error) {
    got = error.what();
    if (got.find(part) != std::string::npos) return;
  } catch (const std::exception& error) {
    got = std::string("another type: ") + error.what();
  }
  ++failures;
  std::fprintf(stderr, "%s:%d: expected an error with '%s', got: %s\n", file, line, part.c_str(),
               got.c_str());
}

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // Uniform in low .. high, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t state_;
};

inline int finish(const char* name) {
  std::fprintf(stderr, "%s: %s\n", name, failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace astra_sim::test

#define CHECK_EQUAL(a, b) astra_sim::test::check_equal((a), (b), #a, __FILE__, __LINE__)
#define CHECK(a) astra_sim::test::check_equal(static_cast<bool>(a), true, #a, __FILE__, __LINE__)
#define CHECK_THROWS(Error, part, ...) \
  astra_sim::test::check_throws<Error>([&] { __VA_ARGS__; }, (part), __FILE__, __LINE__)
