#!/bin/sh
# Figure 9 of the LLMServingSim 2.0 paper; usage: figure_9.sh [--artifact DIR] [--output DIR]
exec "$(dirname "$0")/figures.sh" 9 "$@"
