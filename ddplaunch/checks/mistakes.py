"""Checks of the script's source for the mistakes that guides to distributed training warn of, each with its line.

The ``mistakes`` family breaks a run of several ranks, or spoils what it trains; ``advice`` is shown by ``doctor`` and
``plan`` alone. The script is read by ``ddplaunch/script/mistakes``, which is silent where it cannot be sure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, Findings, checks_in
from ddplaunch.planning.launch import Launch
from ddplaunch.script.script_report import Mistake, ScriptReport
from ddplaunch.values.finding import Finding, warning

_SMALL_BATCH = 16  # samples: below it the means and variances of a batch are noisy (Wu and He 2018, arXiv:1803.08494)


def _of(code: str, script: ScriptReport, launch: Launch) -> Iterator[Mistake]:
    """Yield the mistakes of ``code`` where several ranks are launched, or nobody has said how many."""
    if launch.topology.world_size > 1 or launch.options.nproc is None:
        yield from (each for each in script.mistakes if each.code == code)


def _told(found: Mistake, what: str, why: str, fix: str = "") -> Finding:
    """Return the finding about a line, with the line that should stand there as its fix."""
    return warning(found.code, what, why=why, fix=fix or f"`{found.corrected}`", where=str(found.at))


def rendezvous_in_script(script: ScriptReport, launch: Launch) -> Findings:
    """The script sets an address or port of its own, at which no rank listens.

    torchrun starts the store at MASTER_ADDR:MASTER_PORT itself and tells ranks so (TORCHELASTIC_USE_AGENT_STORE): with
    another port, or `init_method="tcp://…"`, all of them connect to a port that nobody has opened, and end after the
    time-out. Remedy: `init_process_group()` without these; `os.environ.setdefault` for runs without a launcher.
    """
    port = launch.topology.master_port
    for found in _of("rendezvous-in-script", script, launch):
        if port is not None and found.detail.endswith((f"={port.value}", f":{port.value}")):
            continue
        why = "torchrun holds the store at a port that it chose, and ranks would wait at another one until the time-out"
        yield _told(found, f"the script meets at its own {found.detail}, not at torchrun's address", why)


def world_size_in_script(script: ScriptReport, launch: Launch) -> Findings:
    """A world size or a rank is written into the script.

    Ranks wait for others that nobody starts, or are left out, or all claim to be the same one. torchrun sets WORLD_SIZE
    and RANK for each. Remedy: `init_process_group()` without `world_size` and `rank`.
    """
    for found in _of("world-size-in-script", script, launch):
        name, _, value = found.detail.partition("=")
        if name.lower() == "world_size" and value == str(launch.topology.world_size):
            continue
        why = f"this launch has {launch.topology.world_size} ranks: the others would be waited for, or left out"
        if name.lower() == "rank":
            why = "all ranks would claim to be one, and wait for the others"
        yield _told(found, f"the script says {found.detail} to all ranks", why)


def gpu_of_all_ranks(script: ScriptReport, launch: Launch) -> Findings:
    """All ranks of a node would take the same GPU.

    `cuda()` and `torch.device("cuda")` are the current GPU, which is number 0 until `torch.cuda.set_device` names
    another one; a number in the source is the same for all ranks. NCCL refuses two ranks on one GPU (`Duplicate GPU
    detected`), and without NCCL they share its memory. What the source does not show, the ranks' first steps do.
    Remedy: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything is moved.
    """
    if launch.device.value == "cpu" and launch.options.nproc is not None:
        return
    for found in _of("gpu-of-all-ranks", script, launch):
        if found.detail:
            what = f"all ranks of a node take the GPU that is written into the script: {found.detail}"
            yield _told(found, what, "NCCL refuses two ranks on one GPU, and each needs its own memory there")
        else:
            what = f"`{found.line}` is GPU 0 in every rank: nothing in the script chooses the rank's own"
            fix = f"before it, and before `init_process_group`: `{found.corrected}`"
            yield _told(found, what, "NCCL refuses two ranks on one GPU, and each needs its own memory there", fix)


def data_parallel_under_launcher(script: ScriptReport, launch: Launch) -> Findings:
    """DataParallel, in a script that several processes run.

    `torch.nn.DataParallel` is one process with a thread for each GPU. Started several times, each process takes all
    GPUs and trains a model of its own. Remedy: one process; or DistributedDataParallel in a process group.
    """
    for found in _of("data-parallel-under-launcher", script, launch):
        yield _told(
            found,
            f"DataParallel makes each rank use the same GPUs for a model of its own: {found.detail}",
            "it is for one process with a thread for each GPU, and no gradients are averaged between processes",
            f"`ddplaunch run 1 -- …` as it is; or `init_process_group()` and `{found.corrected}`",
        )


def shuffle_with_sampler(script: ScriptReport, launch: Launch) -> Findings:
    """`shuffle=True` stands beside a sampler.

    The DataLoader raises `ValueError: sampler option is mutually exclusive with shuffle`. A DistributedSampler shuffles
    by itself. Remedy: leave `shuffle` out.
    """
    for found in _of("shuffle-with-sampler", script, launch):
        why = "the DataLoader raises a ValueError; the sampler shuffles by itself"
        yield _told(found, "a DataLoader has `shuffle=True` beside a sampler", why)


def data_not_divided(script: ScriptReport, launch: Launch) -> Findings:
    """Each rank trains on all samples.

    The DataLoader of each rank has a sampler that knows nothing of the others, or all have the same rank's. An epoch
    takes as long as on one process. The script's source shows it before the run, the ranks' first steps do where it
    does not. Remedy: `DistributedSampler(dataset)`, and `set_epoch` before each epoch.
    """
    for found in _of("data-not-divided", script, launch):
        why = "ranks that see the same samples do the same work side by side: an epoch takes as long as on one process"
        yield _told(found, f"each rank trains on all samples of {found.detail}: no sampler divides them", why)


def gradients_not_averaged(script: ScriptReport, launch: Launch) -> Findings:
    """Ranks share a process group and divide the data, and nothing averages their gradients.

    Each rank then trains a model of its own on its part of the samples, and their losses drift apart. The script's
    source shows it before the run where nothing in it wraps the model or sends anything, the ranks' first steps do
    where nothing went through the process group, also of ranks that each take all samples. Remedy:
    `DistributedDataParallel(model)`.
    """
    for found in _of("gradients-not-averaged", script, launch):
        why = "each rank trains a model of its own on its part of the samples, and their losses drift apart"
        fix = f"before the first step: `{found.corrected}`"
        yield _told(found, "ranks divide the data, but nothing averages their gradients", why, fix)


def sampler_epoch_not_set(script: ScriptReport, launch: Launch) -> Findings:
    """A DistributedSampler is never told of the epoch.

    It shuffles by its seed and the epoch alone, so without `set_epoch` every epoch has the same order, and every rank
    the same part of the data. Remedy: `sampler.set_epoch(epoch)` first in each epoch.
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    for found in _of("sampler-epoch-not-set", script, launch):
        name, _, loop = found.detail.partition(" ")
        why = "it shuffles by its seed and the epoch alone: a rank sees the same samples in the same order every time"
        fix = f"first in the loop at {loop}: `{found.corrected}`"
        yield _told(found, f"nothing calls `{name}.set_epoch`, so all epochs have one order", why, fix)


def collective_on_some_ranks(script: ScriptReport, launch: Launch) -> Findings:
    """Only some ranks reach a collective.

    A collective ends when all ranks of the group have joined it. Under `if rank == 0`, or behind a `return` or
    `continue` that only some ranks take, those that are there wait until the time-out, or meet the others in their next
    collective. Remedy: the collective out of the branch.
    """
    for found in _of("collective-on-some-ranks", script, launch):
        name, test, where = found.detail.split("\n")
        why = "it ends when all ranks have joined it: those that are there wait for the others until the time-out"
        fix = f"`{found.corrected}` where all ranks come, outside of `if {test}:` and not behind it"
        name = f"`{name}`, to which this call comes at {where}" if where else f"`{name}`"
        yield _told(found, f"only some ranks reach {name}: `if {test}:`", why, fix)


def evaluation_on_one_rank(script: ScriptReport, launch: Launch) -> Findings:
    """One rank alone calls the model through DistributedDataParallel.

    Its forward broadcasts buffers, such as the means of BatchNorm, from rank 0 to all: the rank waits for others that
    are not there, or their next step takes what it sent. Remedy: the model within, `model.module`, on that rank.
    """
    for found in _of("evaluation-on-one-rank", script, launch):
        name, _, test = found.detail.partition(" ")
        why = "its forward broadcasts buffers (BatchNorm's) to ranks that are not there; the model within does not"
        yield _told(found, f"only one rank calls the DistributedDataParallel `{name}`: `if {test}:`", why)


def replicas_differ(script: ScriptReport, launch: Launch) -> Findings:
    """The parameters of the model are not the same on all ranks.

    DistributedDataParallel copies those of rank 0 to all when it wraps a model, and averages gradients from then on:
    what one rank loads, initialises or multiplies by itself behind that stays on it, and the ranks train different
    models. The script's source shows it before the run, sums over parameters at the ranks' third step do where it does
    not. Remedy: the same on all ranks, or on rank 0 in front of the wrapper.
    https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
    """
    for found in _of("replicas-differ", script, launch):
        name, _, test = found.detail.partition(" ")
        why = "DistributedDataParallel has copied rank 0's parameters before, and copies none again: the ranks train "
        why += "different models"
        fix = f"`{found.corrected}` on all ranks, or on rank 0 before it is wrapped"
        yield _told(found, f"only one rank loads parameters into `{name}`: `if {test}:`", why, fix)


def file_of_all_ranks(script: ScriptReport, launch: Launch) -> Findings:
    """All ranks write a checkpoint to one path.

    They write over each other, and a reader may find a file that is cut off or mixed. Remedy: only rank 0 saves, the
    others wait at a `barrier()` if they read it.
    """
    for found in _of("file-of-all-ranks", script, launch):
        why = "they write over each other at once; who reads it may find a file that is cut off or mixed"
        yield _told(found, f"all ranks save to one path, {found.detail}", why)


def state_dict_prefixed(script: ScriptReport, launch: Launch) -> Findings:
    """A checkpoint holds the state of the DistributedDataParallel, not of the model within.

    Each name in it begins with `module.`, so that a model without the wrapper does not take it (`Missing key(s) in
    state_dict`). Remedy: `model.module.state_dict()`.
    """
    for found in _of("state-dict-prefixed", script, launch):
        name, _, loads = found.detail.partition(" ")
        if loads:
            why = "each name that the wrapper wants begins with `module.`; the checkpoint is of the model within"
            yield _told(found, f"the state of a model is loaded into its wrapper `{name}`", why)
            continue
        why = "each name in it begins with `module.`, and a model that is not wrapped refuses it"
        yield _told(found, f"the checkpoint holds the state of the wrapper `{found.detail}`", why)


def load_without_map_location(script: ScriptReport, launch: Launch) -> Findings:
    """`torch.load` without `map_location` puts the checkpoint of every rank on one GPU.

    Tensors go back to the GPU that they were saved from, which is rank 0's: every rank takes memory there, and one that
    does not see that GPU fails. Remedy: `map_location="cpu"`.
    https://docs.pytorch.org/docs/stable/generated/torch.load.html
    """
    for found in _of("load-without-map-location", script, launch):
        why = "tensors go to the GPU that they were saved from: all ranks take memory of rank 0's"
        yield _told(found, "a checkpoint is loaded without `map_location`", why)


def seed_of_all_ranks(script: ScriptReport, launch: Launch) -> Findings:
    """All ranks draw their random augmentation from one seed.

    With equal seeds the n-th sample of each rank is cropped and flipped in the same way, so that a batch has less
    variety than it seems. The weights need no equal seed: DistributedDataParallel sends those of rank 0. Remedy: the
    seed plus the rank.
    """
    for found in _of("seed-of-all-ranks", script, launch):
        why = "the n-th samples of all ranks are augmented alike; weights need no equal seed, rank 0's are sent to all"
        yield _told(found, f"all ranks augment from one seed, `{found.detail}`", why)


def batch_norm_of_one_rank(script: ScriptReport, launch: Launch) -> Findings:
    """BatchNorm takes its statistics from the few samples of one rank.

    DistributedDataParallel averages gradients, not the means of a batch. With fewer than 16 samples for each rank these
    are noisy (Wu and He 2018, arXiv:1803.08494). Remedy: SyncBatchNorm, or a larger batch.
    """
    batch = launch.numbers.batch_size
    for found in _of("batch-norm-of-one-rank", script, launch):
        if batch is not None and batch.value < _SMALL_BATCH:
            why = f"the statistics of {batch.value} samples are noisy, and DistributedDataParallel does not join them"
            fix = f"before the model is wrapped: `{found.corrected}`"
            yield _told(found, f"BatchNorm ({found.detail}) sees only the {batch.value} samples of its rank", why, fix)


def unused_parameters_searched(script: ScriptReport, launch: Launch) -> Findings:
    """DistributedDataParallel looks for unused parameters of a model that has none.

    `find_unused_parameters=True` walks through the graph after every forward. It is for models of which a step may
    leave out a part. Remedy: leave it out.
    """
    for found in _of("unused-parameters-searched", script, launch):
        why = "every step walks through the whole graph for parameters that this model always uses"
        yield _told(found, f"`find_unused_parameters=True` for `{found.detail}`", why)


def group_not_destroyed(script: ScriptReport, launch: Launch) -> Findings:
    """The script never destroys its process group.

    NCCL's threads and connections are then torn down while the interpreter ends: torch warns, and now and then a
    finished training hangs or aborts there. Remedy: `dist.destroy_process_group()` last in the script.
    https://docs.pytorch.org/docs/stable/distributed.html#shutdown
    """
    if launch.device.value == "cpu" and launch.options.nproc is not None:
        return
    for found in _of("group-not-destroyed", script, launch):
        why = "NCCL warns at the end, and now and then a finished training hangs or aborts there"
        yield _told(found, "no `destroy_process_group` in the script", why, f"last in the script: `{found.corrected}`")


CHECKS: tuple[Check, ...] = checks_in(
    globals(),
    "mistakes",
    advice=(
        load_without_map_location,
        seed_of_all_ranks,
        batch_norm_of_one_rank,
        unused_parameters_searched,
        group_not_destroyed,
    ),
)
#: The family of what costs time or memory, or is only a bad habit: told by ``doctor`` and ``plan``.
ADVICE = "advice"
