"""`evaluation/measured.sh`: see `measured.every`."""

import sys

from measured.every import main

sys.exit(main())
