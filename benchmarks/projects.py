"""Trains with real projects by torchrun, cold and warm, and tells how each ended and whether it trained the same.

    python -m benchmarks.projects FOLDER --python PYTHON

FOLDER holds clones, each under its repository's name; nothing is fetched, and one that is not there is told so. PYTHON
is an interpreter that has ddplaunch and what the projects import. A project is copied first, and trains there for a few
steps on tiny data that are made up beside it; one that sets no seed gets a line that does. Right is what ends as under
torchrun, leaves nothing running, and has printed and saved the same: some projects want GPUs, and fail without them.
The table goes to benchmarks/results/projects.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import machine
from tests.hosts.launching import run_to_end

RESULTS = Path(__file__).with_name("results") / "projects.md"
DEADLINE_S = 900
LEFT_S = 10  # for what ends by itself a moment after its launch
WAYS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{ranks}"),
    "cold": ("-m", "ddplaunch", "run", "{ranks}", "--no-forward", "--start", "cold", "--"),
    "warm": ("-m", "ddplaunch", "run", "{ranks}", "--no-forward", "--start", "warm", "--"),
}
#: How a training ended, after how many seconds, and what was trained.
Training = tuple[str, float, set[str]]
_SAVED = {".bin", ".ckpt", ".pt", ".pth", ".safetensors", ".tar"}
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
import os, random, struct
for place in PLACES:
    folder = f"{place}/MNIST/raw"
    os.makedirs(folder, exist_ok=True)
    for name, number in (("train", NUMBERS[0]), ("t10k", NUMBERS[1])):
        pixels = random.Random(0).randbytes(784 * 100)
        with open(f"{folder}/{name}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 2051, number, 28, 28) + pixels * (number // 100))
        with open(f"{folder}/{name}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 2049, number) + bytes(range(10)) * (number // 10))
"""
_WORDS = """
import json, os
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
import torch
torch.manual_seed(0)
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
random.seed(0)
os.makedirs("data/mini", exist_ok=True)
for part in ("train", "val"):
    with open(f"data/mini/{part}.bin", "wb") as file:
        file.write(struct.pack("<2000H", *(random.randrange(32) for _ in range(2000))))
with open("data/mini/meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": 32}, file)
"""
_COLORS = """
import numpy, os, pickle, random
os.makedirs(f"{PLACE}/cifar-10-batches-py", exist_ok=True)
for name in (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
    with open(f"{PLACE}/cifar-10-batches-py/{name}", "wb") as file:
        pixels = numpy.frombuffer(random.Random(0).randbytes(16 * 3072), dtype=numpy.uint8).reshape(16, 3072)
        pickle.dump({"data": pixels, "labels": [number % 10 for number in range(16)]}, file)
with open(f"{PLACE}/cifar-10-batches-py/batches.meta", "wb") as file:
    pickle.dump({"label_names": list("0123456789")}, file)
"""
_PAPERS = """
import random
random.seed(0)
ids = sorted({word for line in open(f"{PLACE}/cora.cites") for word in line.split()}, key=int)
with open(f"{PLACE}/cora.content", "w") as file:
    for paper in ids:
        words = " ".join(random.choice("0001") for _ in range(WORDS)).replace(" ", "\\t")
        file.write(f"{paper}\\t{words}\\tsubject{random.randrange(7)}\\n")
"""
_SEED = """
import re
with open(SCRIPT) as file:
    text = file.read()
seed = "import random, numpy, torch; torch.manual_seed(1); random.seed(1); numpy.random.seed(1)"
if UNCHECKED:
    seed += "; import torchvision; torchvision.datasets.cifar.check_integrity = lambda *_: True"
with open(SCRIPT, "w") as file:
    file.write(re.sub("(?m)^((?:import|from) torch.*)$", rf"\\1\\n{seed}", text, count=1))
"""
_CHANGE = """
with open(SCRIPT) as file:
    text = file.read()
for old, new in CHANGES.items():
    if old not in text:
        raise SystemExit(f"{SCRIPT} has no {old!r}")
    text = text.replace(old, new)
with open(SCRIPT, "w") as file:
    file.write(text)
"""
_TEXTS = """
import random
random.seed(0)
for part in ("train", "valid", "test"):
    with open(f"{part}.txt", "w") as file:
        for _ in range(60):
            file.write(" ".join(random.choice(("cat", "dog", "mat")) for _ in range(12)) + "\\n")
"""
_PATCHES = """
import h5py, numpy
numbers = numpy.random.default_rng(0).uniform(0, 255, (4, 2, 33, 33)).astype("float32")
for name, part in (("train", numbers[:3]), ("eval", numbers[3:])):
    with h5py.File(f"{name}.h5", "w") as file:
        for place, kind in enumerate(("lr", "hr")):
            if name == "train":
                file[kind] = part[:, place]
            else:
                file[f"{kind}/0"] = part[0, place]
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


def _seeded(script: str, unchecked: bool = False) -> str:
    return _two(_SEED, SCRIPT=script, UNCHECKED=unchecked)


def _changed(script: str, changes: Mapping[str, str]) -> str:
    return _two(_CHANGE, SCRIPT=script, CHANGES=dict(changes))


def _digits(*places: str, numbers: tuple[int, int] = (600, 200)) -> str:
    return _two(_DIGITS, PLACES=places, NUMBERS=numbers)


_LIGHTNING = "--trainer.accelerator=cpu --trainer.devices=2 --trainer.strategy=ddp --trainer.max_epochs=1"
_FABRIC = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2"}
_QUIET = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}
_HERE = {"PYTHONPATH": "{project}"}
PROJECTS = {
    "nanoGPT": Project(
        "nanoGPT",
        _CHARACTERS
        + _changed(
            "train.py",
            {
                "device = f'cuda:{ddp_local_rank}'": "",
                "torch.cuda.set_device(device)": "",
                ", device_ids=[ddp_local_rank]": "",
            },
        ),
        "train.py --dataset=mini --device=cpu --backend=gloo --compile=False --eval_iters=1 "
        "--block_size=16 --batch_size=4 --n_layer=1 --n_head=2 --n_embd=16 --max_iters=4 "
        "--gradient_accumulation_steps=2 --log_interval=1 --dropout=0.0 --eval_interval=2 "
        "--always_save_checkpoint=True",
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
        _two(_IMAGES, PARTS=["images"], SIZE=16)
        + _UNET
        + _seeded("examples/unconditional_image_generation/train_unconditional.py"),
        "examples/unconditional_image_generation/train_unconditional.py --train_data_dir images "
        "--model_config_name_or_path config.json --resolution 16 --train_batch_size 4 "
        "--num_epochs 1 --ddpm_num_inference_steps 2 --eval_batch_size 2 --output_dir out",
        environ={"PYTHONPATH": "{project}/src", "ACCELERATE_USE_CPU": "true", **_QUIET},
    ),
    "accelerate": Project("accelerate", _WORDS + _BERT, "examples/nlp_example.py --cpu", environ=_QUIET),
    "Lightning": Project(
        "pytorch-lightning",
        _digits("data", "examples/Datasets", numbers=(60000, 10000)),
        f"examples/pytorch/basics/autoencoder.py {_LIGHTNING} --trainer.limit_train_batches=3 "
        "--trainer.limit_val_batches=1 --trainer.limit_test_batches=1 --trainer.limit_predict_batches=1",
    ),
    "Fabric": Project(
        "pytorch-lightning",
        _digits("Datasets"),
        "examples/fabric/image_classifier/train_fabric.py --epochs=1 --dry-run",
        environ=_FABRIC,
    ),
    "hydra template": Project(
        "lightning-hydra-template",
        _digits("data", numbers=(60000, 10000)),
        "src/train.py trainer=ddp trainer.accelerator=cpu trainer.devices=2 trainer.max_epochs=1 "
        "trainer.min_epochs=1 +trainer.limit_train_batches=3 +trainer.limit_val_batches=1 "
        "+trainer.limit_test_batches=1 trainer.sync_batchnorm=False test=False callbacks=none seed=1",
    ),
    "imagenet": Project(
        "examples",
        _two(_IMAGES, PARTS=["images/train", "images/val"], SIZE=64),
        "imagenet/main.py -a squeezenet1_1 --dist-url env:// --dist-backend gloo --epochs 1 -b 8 -j 1 -p 1 "
        "--seed 1 images",
    ),
    "mnist": Project(
        "examples", _digits("data"), "main.py --epochs 1 --no-accel --batch-size 100 --log-interval 1", "mnist"
    ),
    "mnist_rnn": Project("examples", _digits("data"), "main.py --epochs 1 --log-interval 1", "mnist_rnn"),
    "mnist_hogwild": Project(
        "examples",
        _digits("data"),
        "main.py --epochs 1 --num-processes 1 --log-interval 1",  # more train as they come
        "mnist_hogwild",
        ranks=1,
    ),
    "vae": Project("examples", _digits("data"), "main.py --epochs 1 --no-accel --log-interval 1", "vae", ranks=1),
    "dcgan": Project(
        "examples",
        "",
        "dcgan/main.py --dataset fake --dataroot . --niter 1 --ngf 8 --ndf 8 --dry-run --manualSeed 1 --workers 1",
        ranks=1,
    ),
    "word_language_model": Project(
        "examples",
        _TEXTS,
        "word_language_model/main.py --data . --epochs 1 --emsize 8 --nhid 8 --nlayers 1 --batch_size 4 "
        "--log-interval 1",
        ranks=1,
    ),
    "regression": Project("examples", _seeded("regression/main.py"), "regression/main.py"),
    "makemore": Project(
        "makemore", "", "makemore.py --max-steps 31 --n-layer 1 --n-head 2 --n-embd 16 --num-workers 1"
    ),
    "pygcn": Project("pygcn", _two(_PAPERS, PLACE="data/cora", WORDS=20), "train.py --epochs 3", "pygcn", _HERE),
    "pyGAT": Project(
        "pyGAT", _two(_PAPERS, PLACE="data/cora", WORDS=20), "train.py --epochs 2 --hidden 2 --nb_heads 1", ranks=1
    ),
    "TCN": Project(
        "TCN",
        _seeded("TCN/adding_problem/add_test.py") + _changed("TCN/adding_problem/add_test.py", {"50000": "2000"}),
        "add_test.py --cuda --epochs 1 --seq_len 16 --levels 2 --nhid 5 --batch_size 100 --log-interval 5",
        "TCN/adding_problem",
    ),
    "torchdiffeq": Project(
        "torchdiffeq",
        _seeded("examples/ode_demo.py"),
        "examples/ode_demo.py --niters 4 --test_freq 2 --data_size 100",
        environ=_HERE,
    ),
    "pytorch-examples": Project("pytorch-examples", _seeded("nn/two_layer_net_optim.py"), "nn/two_layer_net_optim.py"),
    "PyTorch-GAN": Project(
        "PyTorch-GAN",
        _digits("data/mnist") + _seeded("implementations/gan/gan.py"),
        "gan.py --n_epochs 1",
        "implementations/gan",
    ),
    "pyro": Project("pyro", "", "examples/lda.py -n 3 -d 40 -w 32 -wd 8 -t 2 -l 8-8 -b 8", environ=_HERE),
    "hamiltonian-nn": Project(
        "hamiltonian-nn", "", "experiment-spring/train.py --verbose --total_steps 5 --print_every 1", ranks=1
    ),
    "schedule_free": Project(
        "schedule_free",
        _digits("examples/data"),
        "main.py --epochs 1 --no-cuda --log-interval 1",
        "examples/mnist",
        _HERE,
    ),
    "char-rnn": Project(
        "char-rnn.pytorch",
        _TEXTS + _seeded("train.py") + _changed("train.py", {"loss.data[0]": "loss.data"}),
        "train.py train.txt --n_epochs 2 --print_every 1 --hidden_size 8 --chunk_len 20 --batch_size 4",
        ranks=1,
    ),
    "ignite mnist": Project(
        "ignite",
        _digits(".") + _seeded("examples/mnist/mnist.py") + _changed("examples/mnist/mnist.py", {":.2f": ":.6f"}),
        "examples/mnist/mnist.py --epochs 1 --log_interval 1",
        environ=_HERE,
    ),
    "ignite cifar10": Project(
        "ignite",
        _two(_COLORS, PLACE="data") + _seeded("examples/cifar10/main.py", unchecked=True),
        "examples/cifar10/main.py run --backend gloo --data_path data --output_path out --batch_size 16 "
        "--num_workers 2 --num_epochs 2 --num_warmup_epochs 1 --log_every_iters 1",
        environ=_HERE,
    ),
    "lenet5": Project(
        "komputasi-paralel-ddp-lenet5",
        _two(_COLORS, PLACE="data") + _seeded("train_ddp.py", unchecked=True),
        "train_ddp.py --epochs 2 --batch-size 8 --data-root data --checkpoint out/lenet5.pt --latency-iters 2",
        environ={"LOCALAPPDATA": "{project}"},
    ),
    "federated-learning": Project(
        "federated-learning",
        _digits("data/mnist") + _seeded("main_nn.py") + "import os\nos.makedirs('log', exist_ok=True)\n",
        "main_nn.py --dataset mnist --epochs 1 --gpu -1",
    ),
    "LLMs-from-scratch": Project(
        "LLMs-from-scratch",
        _changed(
            "appendix-A/01_main-chapter-code/DDP-script-torchrun.py",
            {
                '"nccl"': '"gloo"',
                "    torch.cuda.set_device(rank)": "",
                ".to(rank)": '.to("cpu")',
                ", device_ids=[rank]": "",
                "device=rank": 'device="cpu"',
                "loss:.2f": "loss:.6f",
            },
        ),
        "appendix-A/01_main-chapter-code/DDP-script-torchrun.py",
    ),
    "tiny-diffusion": Project(
        "tiny-diffusion", _seeded("ddpm.py"), "ddpm.py --dataset circle --num_epochs 1 --train_batch_size 400", ranks=1
    ),
    "x-transformers": Project(
        "x-transformers",
        _seeded("train_copy.py") + _changed("train_copy.py", {"int(1e5)": "5", "dim = 128": "dim = 16"}),
        "train_copy.py",
        environ=_HERE,
    ),
    "ng-video-lecture": Project(
        "ng-video-lecture",
        _changed(
            "gpt.py",
            {
                "block_size = 256": "block_size = 16",
                "max_iters = 5000": "max_iters = 5",
                "eval_interval = 500": "eval_interval = 2",
                "eval_iters = 200": "eval_iters = 2",
                "n_embd = 384": "n_embd = 24",
            },
        ),
        "gpt.py",
    ),
    "pytorch-tutorial": Project(
        "pytorch-tutorial",
        _seeded("tutorials/01-basics/linear_regression/main.py"),
        "main.py",
        "tutorials/01-basics/linear_regression",
        {"MPLBACKEND": "agg"},
        ranks=1,
    ),
    "PyTorchZeroToAll": Project("PyTorchZeroToAll", "", "12_2_hello_rnn.py"),
    "opacus": Project(
        "opacus",
        _digits("data", numbers=(200, 100)) + _seeded("examples/mnist.py"),
        "examples/mnist.py --device cpu --epochs 1 --batch-size 20 --data-root data --save-model",
        environ=_HERE,
        ranks=1,
    ),
    "SRCNN": Project(
        "SRCNN-pytorch",
        _PATCHES,
        "train.py --train-file train.h5 --eval-file eval.h5 --outputs-dir out --num-epochs 2 --batch-size 1 "
        "--num-workers 1",
        ranks=1,
    ),
    "forward_forward": Project(
        "examples",
        _digits("mnist_forward_forward/data") + _seeded("mnist_forward_forward/main.py"),
        "main.py --epochs 5 --no_accel --train_size 100 --test_size 100 --log-interval 1",
        "mnist_forward_forward",
    ),
}


def _ready(project: Project, clone: Path, folder: Path, python: str) -> dict[str, str]:
    """Copy the project into ``folder``, make its data there; return the environment. Raises CalledProcessError."""
    shutil.copytree(clone, folder, ignore=_LEFT_OUT, symlinks=True)
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    own = {name: value.format(project=folder) for name, value in project.environ.items()}
    same = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    environ = {**os.environ, "HOME": str(home), **same, **own}
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


def _trained(said: str, folder: Path, began: float) -> set[str]:
    """Return the numbers with three or more decimals that ranks printed, and hashes of the tensors that were saved."""
    records = [path.read_text(errors="replace") for path in folder.rglob(".ddplaunch/runs/*/*/*/rank-*.*")]
    said = "\n".join(records) or said  # our console has the output of rank 0 only
    found = set(re.findall(r"(?<!\d:)(?<![\d.])\d+\.\d{3,}(?:e[-+]?\d+)?", said))  # no times of day
    for path in folder.rglob("*"):
        if path.suffix not in _SAVED or path.stat().st_mtime < began:
            continue
        tensors = [path.read_bytes()]
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as saved:
            tensors = [saved.read(name) for name in saved.namelist() if "/data/" in name]
        found.update(f"{path.name} {hashlib.sha256(tensor).hexdigest()}" for tensor in tensors)
    return found


def one(project: Project, clone: Path, way: str, python: str, logs: Path) -> Training:
    """Train once; return how that ended (``status 0``), the seconds and what was trained. ``logs`` gets the output."""
    with tempfile.TemporaryDirectory(prefix="ddplaunch-project-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve() / "project"
        environ = _ready(project, clone, folder, python)
        words = [word.format(ranks=project.ranks) for word in WAYS[way]]
        wall, began = time.time(), time.monotonic()
        status, said = run_to_end(
            [python, *words, *project.words.split()], folder / project.within, environ, DEADLINE_S
        )
        seconds = time.monotonic() - began
        left = _left(folder)
        trained = _trained(said, folder, wall)
    logs.write_text(said, encoding="utf-8")
    how = f"hung for {DEADLINE_S} s" if status is None else f"status {status}"
    if way == "warm" and "cold start" in said:
        how += ", not warm"
    return f"{how}, left {len(left)} processes" if left else how, seconds, trained


def lost(ways: Mapping[str, list[Training]], way: str) -> tuple[int, int]:
    """Return how much one by ``way`` lacks of what all trainings by torchrun have in common, and how much that is."""
    known = functools.reduce(operator.and_, (trained for _, _, trained in ways["torchrun"]))
    return max(len(known - trained) for _, _, trained in ways[way]), len(known)


def _row(name: str, ways: Mapping[str, list[Training]]) -> str:
    cells = []
    for way in WAYS:
        ends = ways.get(way, [])
        hows = list(dict.fromkeys(how for how, _, _ in ends))
        cells.append(f"{'; '.join(hows)}, {min(s for _, s, _ in ends):.0f} s" if ends else "not tried")
    equal = ""
    if ways:
        number = lost(ways, "torchrun")[1]
        lacks = [f"{way} lacks {lost(ways, way)[0]}" for way in WAYS if lost(ways, way)[0]]
        equal = f"{'; '.join(lacks)} of {number}" if lacks else f"all {number}" if number else "nothing to compare"
    return f"| {name} | {PROJECTS[name].ranks} | " + " | ".join(cells) + f" | {equal} |"


def table(found: Mapping[str, Mapping[str, list[Training]]], about: str, earlier: str = "") -> str:
    """Return the table: how each project ended in each way, the seconds of its fastest training and what was equal.

    Of ``earlier``, a table of before, the rows of projects that were not trained now stay, and so does what is below.
    """
    ruler = "|---" * (len(WAYS) + 3) + "|"
    head = ["# Real projects", "", about, "", "| project | ranks | " + " | ".join(WAYS) + " | equal |", ruler]
    below = earlier.partition(f"{ruler}\n")[2]
    stay, empty, text = below.partition("\n\n")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in stay.splitlines()}
    rows.update({name: _row(name, ways) for name, ways in found.items() if ways or name not in rows})
    return "\n".join([*head, *rows.values()]) + (empty + text if text else "\n")


def main() -> None:
    """Train with every project that is there; write the table; exit with 1 where one differed from torchrun."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the clones")
    parser.add_argument("--python", default=sys.executable, help="that has ddplaunch and what the projects import")
    parser.add_argument("--only", default="", help="these projects, with commas [all]")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--logs", type=Path, help="keep what was said here; a project that has its logs is not run again"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    logs = options.logs or Path(tempfile.mkdtemp(prefix="ddplaunch-projects-"))
    logs.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, list[Training]]] = {}
    for name in options.only.split(",") if options.only else PROJECTS:
        project = PROJECTS[name]
        ways = found.setdefault(name, {})
        ended = logs / f"{name.replace(' ', '-')}.json"
        if ended.exists():
            for way, how, seconds, trained in json.loads(ended.read_text(encoding="utf-8")):
                ways.setdefault(way, []).append((how, seconds, set(trained)))
            continue
        if not (clone := options.folder.resolve() / project.folder).is_dir():
            continue
        for number in range(options.rounds):
            for place, way in enumerate((*WAYS, "torchrun")):
                if place == len(WAYS) and not any(lost(ways, each)[0] for each in WAYS):
                    break  # else once more by torchrun: what differs then, may differ
                end = one(
                    project, clone, way, options.python, ended.with_name(f"{ended.stem}-{way}-{number}-{place}.txt")
                )
                ways.setdefault(way, []).append(end)
                print(f"{name}, {way}: {end[0]}, {end[1]:.0f} s", flush=True)
        ended.write_text(
            json.dumps([(way, how, s, sorted(t)) for way, ends in ways.items() for how, s, t in ends]), encoding="utf-8"
        )
        print(f"{name}: {[(way, *lost(ways, way)) for way in WAYS]}", flush=True)
    about = "`python -m benchmarks.projects`: on the CPU, with one rank where two would write the same files; "
    about += f"{options.rounds} of each and one more by torchrun where one differed, load {os.getloadavg()[0]:.0f} at "
    about += (
        "the end. Equal: the numbers that were printed and the tensors that were saved, as far as torchrun has them."
    )
    earlier = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    text = table(found, f"{about} {json.dumps(machine())}", earlier)
    print(text)
    if not options.no_write:
        RESULTS.write_text(text, encoding="utf-8")
    ends = [[{how for how, _, _ in trainings} for trainings in ways.values()] for ways in found.values()]
    differ = any(lost(ways, way)[0] for ways in found.values() if ways for way in WAYS)
    raise SystemExit(differ or any(each != ways[0] for ways in ends for each in ways))


if __name__ == "__main__":
    main()
