"""The report about a training script, and what its imports tell."""

from __future__ import annotations

import sys
from typing import Literal

from ddplaunch.values.frozen import dataclass

#: The samples of one rank in a pass, of a node, of all ranks, of an optimizer step of all; the others are named as in
#: the plan. What is read of a script is never a node's: only its user may say so.
Meaning = Literal[
    "batch_size",
    "node_batch_size",
    "total_batch_size",
    "global_batch_size",
    "lr",
    "accum",
    "warmup_steps",
    "warmup_epochs",
    "warmup_ratio",
]


@dataclass(frozen=True)
class DeclaredAt:
    """A line of a source file; ``str()`` gives ``train.py:31``, with the path as users see it. Line 0 is unknown."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


#: Names in the powers of an ``LrRule`` that are no options: ranks in all, ranks on this node.
WORLD, LOCAL_WORLD = "world size", "processes per node"


@dataclass(frozen=True)
class LrRule:
    """How the script multiplies a learning rate itself: by ``constant`` times each of ``powers``.

    The names of powers are destinations of options, ``world size`` or ``processes per node``.
    """

    constant: float
    powers: tuple[tuple[str, float], ...]
    at: DeclaredAt


#: Why ranks may not train together: no process group is named, or what is named was not followed.
NO_GROUP = "no process group was seen in what could be read"
GROUP_NOT_FOLLOWED = "no process group was followed that joins the ranks"

#: How a value is passed: ``--lr 0.1``, ``--lr=0.1``, ``lr=0.1``, ``LR 0.1``.
Spelling = Literal["--k v", "--k=v", "k=v", "k v"]


@dataclass(frozen=True)
class DeclaredOption:
    """One command-line option that the script declares.

    ``flags`` are its spellings (``("--batch-size", "-b")``), ``takes_value`` is False for switches, ``default`` the
    literal default as source text or None, ``computed`` whether there is a default that is no literal. ``kind`` is the
    name of its type if the source shows it, ``choices`` the values that it may have, of which None is one that is no
    literal, ``help`` its text as far as it is literal, ``dest`` the name of its value in the script. ``fillable`` is
    False where a number cannot be put in front: behind a subcommand, for several values.

    ``doubt`` says why its value may not be what trains, as a clause. ``meaning`` is the number of the plan that it
    stands for and ``because`` says what that was read from, as a clause;
    ``rule`` is what the script multiplies a learning rate by.

    The key of a configuration is an option whose only flag is the key as it is passed. ``after_flag`` is the option
    that its words follow, ``comes_first`` whether they stand before the user's.
    """

    flags: tuple[str, ...]
    at: DeclaredAt
    takes_value: bool = True
    required: bool = False
    default: str | None = None
    computed: bool = False
    kind: str | None = None
    choices: tuple[str | None, ...] = ()
    help: str = ""
    dest: str = ""
    fillable: bool = True
    parser: str = "argparse"
    meaning: Meaning | None = None
    because: str = ""
    rule: LrRule | None = None
    spelling: Spelling = "--k v"
    after_flag: str = ""
    comes_first: bool = True
    doubt: str = ""


@dataclass(frozen=True)
class Instead:
    """What a script has for a number that no option takes, as a clause, and what to do about it if that is known.

    ``no_option``: no argument can bring it.
    """

    meaning: Meaning
    clause: str
    fix: str = ""
    no_option: bool = False


@dataclass(frozen=True)
class Mistake:
    """A line of the script that does not do with several ranks what it does with one.

    ``corrected`` is what should stand there, ``detail`` what was read in it: a number, a name.
    """

    at: DeclaredAt
    corrected: str
    detail: str = ""


@dataclass(frozen=True)
class FixedDevices:
    """What fixes the ``number`` of devices, by its ``name``: an argument of Lightning's, or CUDA_VISIBLE_DEVICES."""

    name: str
    number: int
    at: DeclaredAt

    def differ(self, nproc: int) -> bool:
        """Return whether ``nproc`` ranks on a node cannot have these devices; variables may show more than needed."""
        return self.number < nproc or (self.number > nproc and self.name != "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class ScriptReport:
    """Everything read from the script and the local modules that it imports.

    ``complete`` is False if there may be options that could not be read, ``unread`` a line that may have them; checks
    that conclude from absence must then stay silent. ``spawns`` is where the script starts its own processes
    (``mp.spawn``, ``torch.multiprocessing.start_processes``), ``spawns_alone`` whether no
    process group is set up but between these.
    ``switched_off`` is where a process group would be set up if the ``switches``, spellings of options, had other
    values than in this launch. ``demands_local_rank`` is a *required* ``--local-rank``/``--local_rank`` option,
    ``takes_local_rank`` where such a one alone chooses the GPU. ``reads_env`` are the names of environment variables
    that appear as literals in environment look-ups, ``needs_env`` those without which each rank
    ends there, and that are not set here, ``asks_for`` the numbers that are read from
    ``ddplaunch.current()``.
    ``ambiguous`` are meanings that several options could have, with these.
    ``instead`` says for meanings that no option has what the source has in its place.
    ``by_file`` says where a file is read, and no option.
    ``early`` says which variable that torch reads while it is imported is named before that, and may be set.
    ``doubts`` are further numbers of the plan that may not be what trains, each with a clause on why: ``world_size``
    where no process group of the launch's ranks was followed, ``accum`` where no loop with a step for each backward
    pass was. ``devices`` is what fixes the number of devices.
    ``configs`` are the configuration files whose keys are among the options or their defaults. ``code`` has the files
    that were followed, the script first, each with a digest of its text.
    """

    path: str
    options: tuple[DeclaredOption, ...] = ()
    spawns: DeclaredAt | None = None
    spawns_alone: bool = False
    switched_off: DeclaredAt | None = None
    switches: tuple[str, ...] = ()
    demands_local_rank: DeclaredAt | None = None
    takes_local_rank: DeclaredAt | None = None
    reads_env: tuple[str, ...] = ()
    needs_env: tuple[tuple[str, DeclaredAt], ...] = ()
    early: str = ""
    asks_for: tuple[str, ...] = ()
    ambiguous: tuple[tuple[Meaning, tuple[str, ...]], ...] = ()
    instead: tuple[Instead, ...] = ()
    by_file: str = ""
    doubts: tuple[tuple[str, str], ...] = ()
    devices: FixedDevices | None = None
    configs: tuple[str, ...] = ()
    syntax_error: str | None = None
    complete: bool = True
    unread: DeclaredAt | None = None
    code: tuple[tuple[str, str], ...] = ()
    mistakes: tuple[Mistake, ...] = ()


_FRAMEWORKS = """
    accelerate axolotl catalyst classy_vision colossalai composer deepspeed detectron2 determined espnet espnet2
    fairscale fairseq fairseq2 fastai horovod ignite keras lightning lightning_fabric llamafactory megatron mmcv
    mmdet mmengine mmseg monai nanotron nemo olmo_core pytorch_lightning ray speechbrain torch_xla torchtitan
    torchtune trl ultralytics unsloth
"""
_HARMLESS = """
    Bio PIL absl addict albumentations attr attrs av bitsandbytes boto3 botocore click cloudpickle colorama comet_ml
    configargparse cv2 datasets ddplaunch decord diffusers dill dotenv easydict editdistance einops
    evaluate fire flash_attn fsspec ftfy future fvcore gdown h5py huggingface_hub hypothesis imageio iopath jiwer
    joblib jsonargparse kornia librosa lmdb loguru matplotlib mlflow neptune netCDF4 networkx nltk numba numpy
    omegaconf packaging pandas peft plotly polars prettytable psutil pyarrow pycocotools pydantic pynvml
    pytest rdkit regex requests rich rich_click rouge_score s3fs sacrebleu safetensors scipy seaborn
    sentence_transformers sentencepiece setproctitle shapely six skimage sklearn soundfile spacy
    tabulate tensorboard tensorboardX termcolor thop tiktoken timm tokenizers toml tomli torch torch_geometric
    torchaudio torchdata torchmetrics torchtext torchvision tqdm transformers triton typing_extensions tyro
    wandb webdataset xarray xformers yacs yaml zarr
"""
_OWN_WAYS = """
    cleo clize docopt draccus getopt gin hydra hydra_zen ml_collections optparse plac prefigure pyrallis sacred
    simple_parsing tap torchtune typer
"""

# Packages that set up the process group themselves.
FRAMEWORKS = frozenset(_FRAMEWORKS.split())
# These, and packages whose import neither declares options of the script nor sets up process groups.
KNOWN_PACKAGES = FRAMEWORKS | {*_HARMLESS.split()} | sys.stdlib_module_names
# Libraries that read the command line in ways that this reader does not know.
OWN_WAYS = frozenset(_OWN_WAYS.split())
