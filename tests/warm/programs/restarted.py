"""Rank 1 fails at its first start; says at each start whether it was forked, and from which process it descends."""

import gc
import os
import sys
from pathlib import Path

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
Path(os.environ["PROBE"], f"{attempt}-{rank}").write_text(f"{gc.get_freeze_count() > 1000} {os.getppid()}")
if attempt == "0" and rank == "1":
    sys.exit(9)
