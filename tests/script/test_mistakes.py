"""The rule for addresses and ports that the script sets itself, where it fires and where it stays silent."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from ddplaunch.script.read import read_script

HEAD = "import os\nimport torch.distributed as dist\ndef main():\n"
BY_OPTION = (
    "p = argparse.ArgumentParser()\np.add_argument('--url', default='tcp://localhost:9999')\nargs = p.parse_args()\n"
)
GROUP = 'dist.init_process_group("nccl")\n'
PORT = 'os.environ["MASTER_PORT"] = "12355"\n'
SET_PORT = 'os.environ.setdefault("MASTER_PORT", "12355")'
WITHOUT_LAUNCHER = (
    f"try:\n    {GROUP}except KeyError:\n"
    '    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)\n'
)


@pytest.mark.parametrize(
    ("body", "line", "corrected"),
    [
        (PORT + GROUP, 4, SET_PORT),
        (  # an address with size and rank is one mistake
            GROUP.replace('")', '", init_method="tcp://localhost:9999", world_size=1, rank=0)'),
            4,
            "dist.init_process_group()",
        ),
        ('os.environ.setdefault("MASTER_PORT", "12355")\n' + GROUP, 0, ""),
        (f'if "RANK" not in os.environ:\n    {PORT}{GROUP}', 0, ""),
        (BY_OPTION + "dist.init_process_group('nccl', init_method=args.url)\n", 7, "dist.init_process_group()"),
        (f"if debug:\n    {PORT}{GROUP}", 0, ""),
        (WITHOUT_LAUNCHER, 0, ""),
        (f"{PORT}{GROUP}if n:\n    torch.multiprocessing.spawn(main, nprocs=n)\n", 0, ""),
        (f"def join():\n    {GROUP}def start():\n    {PORT}    join()\nstart()\n", 7, SET_PORT),
        (
            f"def join():\n    {GROUP}def start():\n    {PORT}    join() if debug else stay()\nstart()\njoin()\n",
            7,
            SET_PORT,
        ),
        (f"def join():\n    {GROUP}def start():\n    {PORT}if debug:\n    start()\njoin()\n", 0, ""),
    ],
)
def test_an_address_or_port_of_the_script(tmp_path: Path, body: str, line: int, corrected: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f'{HEAD}{indent(body, "    ")}if __name__ == "__main__":\n    main()\n')
    found = [(each.at.line, each.corrected) for each in read_script(script, tmp_path).mistakes]
    assert found == ([(line, corrected)] if line else [])
