"""Lets the fault tests import the helpers of the folder above, also when they are run alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
