#!/bin/sh
# What the figures found beside the reference numbers; usage: compare.sh [NUMBER...] [--output DIR]
exec "$(dirname "$0")/figures.sh" --compare "$@"
