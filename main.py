"""The command people know: `python main.py --cluster-config ... --dataset ...` is `llmsim run`."""

import sys

from llmsim.cli import run_main

if __name__ == "__main__":
    sys.exit(run_main())
