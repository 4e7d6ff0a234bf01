"""`python -m vespiary_broker`: the command line."""

from __future__ import annotations

import sys

from vespiary_broker.cli import main

if __name__ == "__main__":
    sys.exit(main())
