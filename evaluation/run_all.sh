#!/bin/sh
# All figures; usage: run_all.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" "$@"
