#!/bin/sh
# Figure 10 of the LLMServingSim 2.0 paper; usage: figure_10.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 10 "$@"
