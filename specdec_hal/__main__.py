"""``python -m specdec_hal``: the command ``specdec-hal``."""

import sys

from specdec_hal.cli import main

if __name__ == "__main__":
    sys.exit(main())
