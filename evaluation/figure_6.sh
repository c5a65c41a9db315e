#!/bin/sh
# Figure 6 of the LLMServingSim 2.0 paper; usage: figure_6.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 6 "$@"
