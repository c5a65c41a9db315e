#!/bin/sh
# Simulates published measurements with nothing fitted; usage: measured.sh [--data DIR] [--only NAME...]
# Uses the environment that `make` sets up, or PYTHON.
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -x "$python" ] || { echo "measured: error: $python is missing; run 'make run' first, or set PYTHON" >&2; exit 2; }
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m measured "$@"
