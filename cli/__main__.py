"""``python -m kvspec.cli``."""

import sys

from kvspec.cli.main import run

sys.exit(run())
