"""On a machine with a GPU: torchrun's process and the template leave CUDA alone, and forked ranks use it with NCCL.

    python -m benchmarks.warm_gpu

One rank for each visible GPU. Leaves with 1 if anything is not as it should be.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tests.warm.launching import environment, plugin, torchrun

RANK = """
import gc, os
import torch
import torch.distributed as distributed
from ddplaunch.agent.warm import kernel

def devices(pid):
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return sorted(link for link in links if link.startswith("/dev/nvidia"))

assert gc.get_freeze_count() > 0, "not forked"
assert kernel.cuda_in_use() is None, "CUDA or NVML was in use before the fork"
assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
assert devices(os.getppid()) == [], "torchrun's process has a GPU open"
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
distributed.init_process_group("nccl", device_id=torch.device("cuda", local))
tensor = torch.full((1 << 20,), float(rank + 1), device="cuda")
distributed.all_reduce(tensor)
expected = sum(range(distributed.get_world_size() + 1))
assert tensor.min().item() == expected == tensor.max().item()
assert kernel.cuda_in_use() is not None, "the check does not notice CUDA"
distributed.destroy_process_group()
print(f"rank {rank} on {torch.cuda.get_device_name()}, NCCL {torch.cuda.nccl.version()}: forked, ok")
"""


def main() -> None:
    """Launch once and print what ranks and torchrun said."""
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    gpus = len(found.splitlines())
    with tempfile.TemporaryDirectory() as name:
        folder = plugin(Path(name))
        script = folder / "rank.py"
        script.write_text(RANK)
        command = torchrun(True, gpus, str(script))
        result = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=300)
    print(f"torch {torch.__version__}", result.stdout, result.stderr, sep="\n")
    fit = result.returncode == 0 and result.stdout.count("forked, ok") == gpus and "cold start" not in result.stderr
    sys.exit(0 if fit else 1)


if __name__ == "__main__":
    main()
