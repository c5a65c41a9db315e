#!/bin/sh
# Every figure and table of the Frontier paper that this folder makes; prints ours beside the paper's.
cd "$(dirname "$0")/../.." || exit 1
for script in figure_12 figure_14 figure_15 figure_16 figure_21 tables_2_5 table_4 table_6; do
  printf '\n# %s\n\n' "$script"
  "${PYTHON:-python}" "evaluation/frontier/$script.py" || exit $?
done
