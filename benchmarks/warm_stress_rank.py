"""One rank of `warm_stress.py`: an all-reduce, a word of how it went, and an end as asked."""

import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as distributed

distributed.init_process_group("gloo")
tensor = torch.ones(1)
distributed.all_reduce(tensor)
how = "forked" if gc.get_freeze_count() else "cold"
Path(sys.argv[1], os.environ["RANK"]).write_text(f"{how}, sum {int(tensor.item())}")
distributed.barrier()
distributed.destroy_process_group()
if sys.argv[2] == "fail" and os.environ["RANK"] == "1":
    sys.exit(3)
