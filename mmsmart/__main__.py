"""``python -m mmsmart``."""

import sys

from mmsmart.cli import main

if __name__ == "__main__":
    sys.exit(main())
