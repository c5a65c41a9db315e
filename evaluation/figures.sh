#!/bin/sh
# Makes figures; usage: figures.sh NUMBER... [--artifact DIR] [--output DIR] [--compare]
# Uses the environment that `make` sets up, or PYTHON.
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -x "$python" ] || { echo "figures: error: $python is missing; run 'make run' first, or set PYTHON" >&2; exit 2; }
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m figures "$@"
