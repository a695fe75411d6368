"""The report about a training script, which numbers its options stand for, and what its imports tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ddplaunch.values.frozen import dataclass

Meaning = Literal["batch_size", "global_batch_size", "lr", "warmup_steps", "accum", "world_size", "nproc", "nnodes"]


@dataclass(frozen=True)
class DeclaredAt:
    """A line of a source file; ``str()`` gives ``train.py:31``, with the path as users see it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class DeclaredOption:
    """One command-line option that the script declares.

    ``flags`` are its spellings (``("--batch-size", "-b")``), ``takes_value`` is False for switches,
    ``default`` is the literal default as source text or None, ``meaning`` the number of the plan that it stands for.
    """

    flags: tuple[str, ...]
    at: DeclaredAt
    takes_value: bool = True
    required: bool = False
    default: str | None = None
    meaning: Meaning | None = None
    parser: str = "argparse"


@dataclass(frozen=True)
class Import:
    """One absolute import in the script, by top-level package."""

    package: str
    at: DeclaredAt


@dataclass(frozen=True)
class ScriptReport:
    """Everything read from the script and the local modules that it imports.

    ``complete`` is False if there may be options that could not be read (an unreadable or dynamic part); checks that
    conclude from absence must then stay silent. ``initialises`` says where the script, or the framework that
    ``framework`` names, sets up a process group. ``spawns`` is where the script starts its own processes
    (``mp.spawn``, ``torch.multiprocessing.start_processes``, ``subprocess`` of torchrun). ``demands_local_rank`` is a
    *required* ``--local-rank``/``--local_rank`` option. ``reads_env`` are the names of environment variables that
    appear as literals in environment look-ups.
    """

    path: str
    options: tuple[DeclaredOption, ...] = ()
    imports: tuple[Import, ...] = ()
    initialises: DeclaredAt | None = None
    framework: str | None = None
    spawns: DeclaredAt | None = None
    demands_local_rank: DeclaredAt | None = None
    reads_env: tuple[str, ...] = ()
    syntax_error: str | None = None
    complete: bool = True


# `train-batch-size` is missing on purpose: it is global for DeepSpeed and per GPU for other programs.
_MEANINGS: dict[str, Meaning] = {
    "batch-size": "batch_size",
    "per-device-train-batch-size": "batch_size",
    "micro-batch-size": "batch_size",
    "train-micro-batch-size-per-gpu": "batch_size",
    "batch-size-per-gpu": "batch_size",
    "bs": "batch_size",
    "global-batch-size": "global_batch_size",
    "effective-batch-size": "global_batch_size",
    "lr": "lr",
    "learning-rate": "lr",
    "warmup-steps": "warmup_steps",
    "num-warmup-steps": "warmup_steps",
    "warmup": "warmup_steps",
    "gradient-accumulation-steps": "accum",
    "grad-accum": "accum",
    "grad-accum-steps": "accum",
    "accum": "accum",
    "accumulation-steps": "accum",
    "accumulate-grad-batches": "accum",
    "accum-iter": "accum",
    "world-size": "world_size",
}


def meaning_of(flags: Iterable[str], kind: str | None, default: str | None) -> Meaning | None:
    """Return the number that ``flags`` stand for by their exact names, or None.

    ``kind`` is the name of the declared type (``int``) if the source shows it. None also for a count whose type or
    default is a fraction, which makes it a ratio, and for text.
    """
    for flag in flags:
        name = flag.lstrip("-").replace("_", "-").lower()
        meaning = _MEANINGS.get(name) if flag.startswith("--") or len(name) > 1 else None
        if meaning is not None:
            return meaning if _fits(name, meaning, kind, default) else None
    return None


def _fits(name: str, meaning: Meaning, kind: str | None, default: str | None) -> bool:
    integral = default is not None and default.replace("_", "").lstrip("+-").isdigit()
    if kind in ("str", "bool", "Path"):
        return False
    if meaning == "lr":
        return kind != "int"
    if name == "warmup":
        return kind == "int" or (kind is None and integral)
    fraction = default is not None and _is_number(default) and not integral
    return kind != "float" and not fraction


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_FRAMEWORKS = """
    accelerate axolotl catalyst classy_vision colossalai composer deepspeed detectron2 determined espnet espnet2
    fairscale fairseq fairseq2 fastai horovod ignite keras lightning lightning_fabric llamafactory megatron mmcv
    mmdet mmengine mmseg monai nanotron nemo olmo_core pytorch_lightning ray speechbrain torch_xla torchtitan
    torchtune trl ultralytics unsloth
"""
_HARMLESS = """
    Bio PIL absl addict albumentations attr attrs av bitsandbytes boto3 botocore click cloudpickle colorama comet_ml
    configargparse cv2 datasets ddplaunch decord diffusers dill dotenv draccus easydict editdistance einops evaluate
    fire flash_attn fsspec ftfy future fvcore gdown h5py huggingface_hub hypothesis imageio iopath jiwer joblib
    jsonargparse kornia librosa lmdb loguru matplotlib mlflow neptune netCDF4 networkx nltk numba numpy omegaconf
    packaging pandas peft plotly polars prettytable psutil pyarrow pycocotools pydantic pynvml pyrallis pytest rdkit
    regex requests rich rich_click rouge_score s3fs sacrebleu safetensors scipy seaborn sentence_transformers
    sentencepiece setproctitle shapely simple_parsing six skimage sklearn soundfile spacy tabulate tensorboard
    tensorboardX termcolor thop tiktoken timm tokenizers toml tomli torch torch_geometric torchaudio torchdata
    torchmetrics torchtext torchvision tqdm transformers triton typer typing_extensions tyro wandb webdataset xarray
    xformers yacs yaml zarr
"""

# Packages that set up the process group themselves.
FRAMEWORKS = frozenset(_FRAMEWORKS.split())
# Packages whose import neither declares options of the script nor sets up process groups.
HARMLESS = frozenset(_HARMLESS.split())
# Libraries that read the command line in ways that this reader does not know.
OWN_WAYS = frozenset({"clize", "cleo", "docopt", "getopt", "gin", "hydra", "hydra_zen", "ml_collections", "optparse"})
OWN_WAYS |= {"plac", "sacred", "tap"}
