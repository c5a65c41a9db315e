"""`python -m llmsim` is the `llmsim` command."""

import sys

from llmsim.cli import main

sys.exit(main())
