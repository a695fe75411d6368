"""Says whether this rank was forked from a template."""

import gc
import os

print(int(gc.get_freeze_count() > 0), os.environ["RANK"])
