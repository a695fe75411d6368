"""Leaves its pid in $PROBE and waits for a minute."""

import os
import time
from pathlib import Path

Path(os.environ["PROBE"], str(os.getpid())).touch()
time.sleep(60)
