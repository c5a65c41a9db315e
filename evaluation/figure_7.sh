#!/bin/sh
# Figure 7 of the LLMServingSim 2.0 paper; usage: figure_7.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 7 "$@"
