#!/bin/sh
# Builds the engine's own tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs them.
set -eu
cd "$(dirname "$0")/.."
cmake -S astra-sim -B build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DASTRA_SANITIZE=address,undefined -DASTRA_BENCH=OFF
cmake --build build/sanitize --parallel 2
ctest --test-dir build/sanitize --output-on-failure
