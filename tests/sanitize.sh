#!/bin/sh
# AddressSanitizer and UndefinedBehaviorSanitizer over the engine's own tests and its command (with the recorded ASTRA-sim
# cases where they are, random programs, and a few hundred damaged files), then over the native module under the tests of what it runs.
# `tests/sanitize.sh engine` and `tests/sanitize.sh native [TESTS]` run one part alone. The PATH has to begin with .venv/bin.
set -eu
cd "$(dirname "$0")/.."

engine() {
  cmake -S astra-sim -B build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DASTRA_SANITIZE=address,undefined -DASTRA_BENCH=OFF \
    -DCMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS
  cmake --build build/sanitize --parallel 2
  ctest --test-dir build/sanitize --output-on-failure
  cd tests
  PYTHONPATH=. python -m engine.sanitized ../build/sanitize/astra-sim
  PYTHONPATH=. python -m engine.strict.strict_programs 0 300 ../build/sanitize/astra-sim
  PYTHONPATH=. python -m engine.fuzz 50 "$(cd .. && pwd)/build/sanitize/astra-sim"
  cd ..
}

# Debug: with the asserts of nanobind and ours. Python itself is not built with the sanitizer, so its library comes first
# (and that of the exceptions which it watches); what Python leaves at its end is no leak of ours.
native() {
  cmake -S . -B build/sanitize-native -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
    -DCMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS -DASTRA_SANITIZE=address,undefined -DASTRA_OPTIMIZE=-O1 -DLLMSIM_OPTIMIZE=-O1 \
    -DPython_EXECUTABLE="$(command -v python)" -Dnanobind_DIR="$(python -m nanobind --cmake_dir)"
  cmake --build build/sanitize-native --parallel 2 --target _native
  compiler=${CXX:-c++}
  LLMSIM_NATIVE=$(ls "$PWD"/build/sanitize-native/_native*.so)
  export LLMSIM_NATIVE PYTHONPATH="$PWD/tests/sanitized" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
  export LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
  python -c 'import os; from llmsim import _native; assert _native.__file__ == os.environ["LLMSIM_NATIVE"], _native'
  python -m pytest "$@"
}

part=${1:-both}
[ $# = 0 ] || shift
[ $# != 0 ] || set -- tests/native tests/scheduling tests/offload tests/routing tests/disaggregation tests/lowering
case $part in
  both) engine; native "$@" ;;
  engine) engine ;;
  native) native "$@" ;;
  *) echo "tests/sanitize.sh: no part '$part': engine, native, or both (also without it)" >&2; exit 2 ;;
esac
