"""``python -m specdec_hal.cli``."""

import sys

from specdec_hal.cli import main

sys.exit(main())
