"""Says whether this rank was forked."""

import gc
import os
import sys

# in one piece: two ranks write into one pipe, and `-u` holds nothing back
sys.stdout.write(f"{int(gc.get_freeze_count() > 1000)} {os.environ['RANK']}\n")
