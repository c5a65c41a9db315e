"""The command people know: `python main.py --cluster-config ... --dataset ...` is `llmsim run`."""

import sys

from llmsim.__main__ import start

sys.exit(start("run_main"))
