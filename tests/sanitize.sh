#!/bin/sh
# Builds the engine's own tests and the command with AddressSanitizer and UndefinedBehaviorSanitizer; runs the tests, the
# recorded ASTRA-sim cases where they are, and a few hundred damaged files.
set -eu
cd "$(dirname "$0")/.."
cmake -S astra-sim -B build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DASTRA_SANITIZE=address,undefined -DASTRA_BENCH=OFF
cmake --build build/sanitize --parallel 2
ctest --test-dir build/sanitize --output-on-failure
cd tests
PYTHONPATH=. python -m engine.sanitized ../build/sanitize/astra-sim
PYTHONPATH=. python -m engine.fuzz 50 "$(cd .. && pwd)/build/sanitize/astra-sim"
