#!/bin/sh
# Figure 5 of the LLMServingSim 2.0 paper; usage: figure_5.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 5 "$@"
