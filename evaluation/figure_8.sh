#!/bin/sh
# Figure 8 of the LLMServingSim 2.0 paper; usage: figure_8.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 8 "$@"
