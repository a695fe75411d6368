"""Trains with twelve real projects, unchanged, by torchrun, cold and warm, and tells how each ended.

    python -m benchmarks.projects FOLDER --python PYTHON

FOLDER holds clones, each under its repository's name; nothing is fetched, and one that is not there is told so. PYTHON
is an interpreter that has ddplaunch and what the projects import. A project is copied first, and trains there for a few
steps on tiny data that are made up beside it. Right is what ends as under torchrun and leaves nothing running: some
projects want GPUs, and fail without them. The table goes to benchmarks/results/projects.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import machine
from tests.hosts.launching import run_to_end

RESULTS = Path(__file__).with_name("results") / "projects.md"
DEADLINE_S = 300
LEFT_S = 10  # for what ends by itself a moment after its launch
WAYS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{ranks}"),
    "cold": ("-m", "ddplaunch", "run", "{ranks}", "--no-forward", "--start", "cold", "--"),
    "warm": ("-m", "ddplaunch", "run", "{ranks}", "--no-forward", "--start", "warm", "--"),
}
_LEFT_OUT = shutil.ignore_patterns(".git", "docs", "assets", "notebooks", "*.ipynb")

_IMAGES = """
import os
from PIL import Image
for part in PARTS:
    for kind in "ab":
        os.makedirs(f"{part}/{kind}", exist_ok=True)
        for number in range(8):
            Image.new("RGB", (SIZE, SIZE), (number * 30, 99, ord(kind))).save(f"{part}/{kind}/{number}.jpg")
"""
_DIGITS = """
import os, struct
for place in PLACES:
    folder = f"{place}/MNIST/raw"
    os.makedirs(folder, exist_ok=True)
    for name, number in (("train", 60000), ("t10k", 10000)):
        with open(f"{folder}/{name}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 2051, number, 28, 28) + os.urandom(784 * 100) * (number // 100))
        with open(f"{folder}/{name}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 2049, number) + bytes(range(10)) * (number // 10))
"""
_WORDS = """
import json, os
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = "the cat sat on a mat and dog ran to it".split()
names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]", *words]
made = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", eos_token="[EOS]"
)
small = dict(vocab_size=len(names), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
"""
_BERT = """
from transformers import BertConfig, BertForSequenceClassification
tokenizer.save_pretrained("bert-base-cased")
BertForSequenceClassification(BertConfig(**small)).save_pretrained("bert-base-cased")
os.makedirs("nyu-mll/glue", exist_ok=True)
for part in ("train", "validation"):
    with open(f"nyu-mll/glue/{part}.jsonl", "w") as file:
        for number in range(32):
            row = {"sentence1": "the cat sat", "sentence2": "a dog ran", "label": number % 2, "idx": number}
            file.write(json.dumps(row) + "\\n")
with open("nyu-mll/glue/README.md", "w") as file:
    file.write(
        "---\\nconfigs:\\n- config_name: mrpc\\n  data_files:\\n  - {split: train, path: train.jsonl}\\n"
        "  - {split: validation, path: validation.jsonl}\\n---\\n"
    )
os.makedirs("glue", exist_ok=True)
with open("glue/glue.py", "w") as file:
    file.write('''
import datasets
import evaluate
class Glue(evaluate.Metric):
    def _info(self):
        numbers = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=numbers)
    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
''')
"""
_LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM
tokenizer.save_pretrained("model")
LlamaForCausalLM(LlamaConfig(**small)).save_pretrained("model")
os.makedirs("texts", exist_ok=True)
with open("texts/train.jsonl", "w") as file:
    file.writelines(json.dumps({"text": "the cat sat on a mat"}) + "\\n" for _ in range(32))
"""
_CHARACTERS = """
import os, pickle, random, struct
os.makedirs("data/mini", exist_ok=True)
for part in ("train", "val"):
    with open(f"data/mini/{part}.bin", "wb") as file:
        file.write(struct.pack("<2000H", *(random.randrange(32) for _ in range(2000))))
with open("data/mini/meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": 32}, file)
"""
_UNET = """
import json
blocks = dict(block_out_channels=[32, 32], down_block_types=["DownBlock2D"] * 2, up_block_types=["UpBlock2D"] * 2)
with open("config.json", "w") as file:
    json.dump({"_class_name": "UNet2DModel", "sample_size": 16, "layers_per_block": 1, **blocks}, file)
"""


@dataclass(frozen=True)
class Project:
    """Where a clone lies, what makes its data (Python source), and what is launched where in it."""

    folder: str
    prepare: str
    words: str
    within: str = "."
    environ: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2


def _two(source: str, **names: object) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in names.items()) + source


_LIGHTNING = "--trainer.accelerator=cpu --trainer.devices=2 --trainer.strategy=ddp --trainer.max_epochs=1"
_FABRIC = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2"}
_QUIET = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}
PROJECTS = {
    "nanoGPT": Project(
        "nanoGPT",
        _CHARACTERS,
        "train.py --dataset=mini --device=cpu --backend=gloo --compile=False --eval_iters=1 "
        "--block_size=16 --batch_size=4 --n_layer=1 --n_head=2 --n_embd=16 --max_iters=4 "
        "--gradient_accumulation_steps=2 --log_interval=1 --dropout=0.0",
    ),
    "minGPT": Project(
        "minGPT",
        "",
        "projects/adder/adder.py --trainer.max_iters=5 --model.model_type=gpt-nano --data.ndigit=1 "
        "--system.work_dir=out --trainer.num_workers=1",
        environ={"PYTHONPATH": "{project}"},
        ranks=1,  # knows nothing of ranks
    ),
    "timm": Project(
        "pytorch-image-models",
        _two(_IMAGES, PARTS=["images/train", "images/validation"], SIZE=32),
        "train.py --data-dir images --model resnet18 --num-classes 2 --img-size 32 "
        "--epochs 1 --batch-size 4 --device cpu --workers 1 --no-prefetcher "
        "--output out --warmup-epochs 0 --cooldown-epochs 0",
        ranks=1,  # two give DDP `device_ids`, which are of GPUs only
    ),
    "open_clip": Project(
        "open_clip",
        "",
        "-m open_clip_train.main --dataset-type synthetic --train-num-samples 8 --epochs 1 "
        "--batch-size 2 --workers 1 --model RN50 --precision fp32",
        environ={"PYTHONPATH": "{project}/src"},
        ranks=1,  # two give DDP `device_ids`, which are of GPUs only
    ),
    "trl": Project(
        "trl",
        _WORDS + _LLAMA,
        "trl/scripts/sft.py --model_name_or_path model --dataset_name texts --max_steps 3 "
        "--per_device_train_batch_size 2 --use_cpu True --bf16 False --report_to none "
        "--output_dir out --logging_steps 1",
        environ={"PYTHONPATH": "{project}", **_QUIET},
    ),
    "diffusers": Project(
        "diffusers",
        _two(_IMAGES, PARTS=["images"], SIZE=16) + _UNET,
        "examples/unconditional_image_generation/train_unconditional.py --train_data_dir images "
        "--model_config_name_or_path config.json --resolution 16 --train_batch_size 4 "
        "--num_epochs 1 --ddpm_num_inference_steps 2 --eval_batch_size 2 --output_dir out",
        environ={"PYTHONPATH": "{project}/src", "ACCELERATE_USE_CPU": "true", **_QUIET},
    ),
    "accelerate": Project("accelerate", _WORDS + _BERT, "examples/nlp_example.py --cpu", environ=_QUIET),
    "Lightning": Project(
        "pytorch-lightning",
        _two(_DIGITS, PLACES=["data", "examples/Datasets"]),
        f"examples/pytorch/basics/autoencoder.py {_LIGHTNING} --trainer.limit_train_batches=3 "
        "--trainer.limit_val_batches=1 --trainer.limit_test_batches=1 --trainer.limit_predict_batches=1",
    ),
    "Fabric": Project(
        "pytorch-lightning",
        _two(_DIGITS, PLACES=["Datasets"]),
        "examples/fabric/image_classifier/train_fabric.py --epochs=1 --dry-run",
        environ=_FABRIC,
    ),
    "hydra template": Project(
        "lightning-hydra-template",
        _two(_DIGITS, PLACES=["data"]),
        "src/train.py trainer=ddp trainer.accelerator=cpu trainer.devices=2 trainer.max_epochs=1 "
        "trainer.min_epochs=1 +trainer.limit_train_batches=3 +trainer.limit_val_batches=1 "
        "+trainer.limit_test_batches=1 trainer.sync_batchnorm=False test=False callbacks=none",
    ),
    "imagenet": Project(
        "examples",
        _two(_IMAGES, PARTS=["images/train", "images/val"], SIZE=64),
        "imagenet/main.py -a squeezenet1_1 --dist-url env:// --dist-backend gloo --epochs 1 -b 8 -j 1 -p 1 images",
    ),
    "torchvision references": Project(
        "vision",
        _two(_IMAGES, PARTS=["images/train", "images/val"], SIZE=64),
        "references/classification/train.py --data-path images --model resnet18 --device cpu "
        "--epochs 1 --batch-size 4 --workers 1",
    ),
}


def _ready(project: Project, clone: Path, folder: Path, python: str) -> dict[str, str]:
    """Copy the project into ``folder``, make its data there; return the environment. Raises CalledProcessError."""
    shutil.copytree(clone, folder, ignore=_LEFT_OUT, symlinks=True)
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    own = {name: value.format(project=folder) for name, value in project.environ.items()}
    environ = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **own}
    if project.prepare:
        subprocess.run([python, "-c", project.prepare], cwd=folder, env=environ, check=True, timeout=DEADLINE_S)
    return environ


def _left(folder: Path) -> list[str]:
    """Return the command lines of processes that still work in ``folder`` when they had time to end."""
    until = time.monotonic() + LEFT_S
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if process.joinpath("cwd").readlink().is_relative_to(folder):
                    found.append(process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)


def one(project: Project, clone: Path, way: str, python: str, logs: Path) -> tuple[str, float]:
    """Train once; return how that ended (``status 0``) and the seconds. ``logs`` gets what was said."""
    with tempfile.TemporaryDirectory(prefix="ddplaunch-project-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve() / "project"
        environ = _ready(project, clone, folder, python)
        words = [word.format(ranks=project.ranks) for word in WAYS[way]]
        began = time.monotonic()
        status, said = run_to_end(
            [python, *words, *project.words.split()], folder / project.within, environ, DEADLINE_S
        )
        seconds = time.monotonic() - began
        left = _left(folder)
    logs.write_text(said, encoding="utf-8")
    how = f"hung for {DEADLINE_S} s" if status is None else f"status {status}"
    if way == "warm" and "cold start" in said:
        how += ", not warm"
    return f"{how}, left {len(left)} processes" if left else how, seconds


def table(found: Mapping[str, Mapping[str, list[tuple[str, float]]]], about: str) -> str:
    """Return the table: how each project ended in each way, with the seconds of its fastest training."""
    lines = ["# Real projects", "", about, "", "| project | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for name, ways in found.items():
        cells = []
        for way in WAYS:
            ends = ways.get(way, [])
            hows = list(dict.fromkeys(how for how, _ in ends))
            cells.append(f"{'; '.join(hows)}, {min(s for _, s in ends):.0f} s" if ends else "not there")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train with every project that is there; write the table; exit with 1 where one ended otherwise than torchrun."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the clones")
    parser.add_argument("--python", default=sys.executable, help="that has ddplaunch and what the projects import")
    parser.add_argument("--only", default="", help="projects whose name contains it")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="keep what was said here")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    logs = options.logs or Path(tempfile.mkdtemp(prefix="ddplaunch-projects-"))
    logs.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for name, project in PROJECTS.items():
        if options.only not in name:
            continue
        ways = found.setdefault(name, {})
        if not (clone := options.folder.resolve() / project.folder).is_dir():
            continue
        for number in range(options.rounds):
            for way in WAYS:
                end = one(project, clone, way, options.python, logs / f"{name.replace(' ', '-')}-{way}-{number}.txt")
                ways.setdefault(way, []).append(end)
                print(f"{name}, {way}: {end[0]}, {end[1]:.0f} s", flush=True)
    about = "`python -m benchmarks.projects`: two ranks on the CPU (one of minGPT, timm and open_clip), "
    about += f"{options.rounds} of each, load {os.getloadavg()[0]:.0f} at the end."
    text = table(found, f"{about} {json.dumps(machine())}")
    print(text)
    if not options.no_write:
        RESULTS.write_text(text, encoding="utf-8")
    ends = [[{how for how, _ in one} for one in ways.values()] for ways in found.values()]
    raise SystemExit(any(each != ways[0] for ways in ends for each in ways))


if __name__ == "__main__":
    main()
