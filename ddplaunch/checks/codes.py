"""Explanations for `ddplaunch explain CODE` of findings that no check makes: hosts, command line, numbers, runs.

Each entry is a code with its title and, indented below it, the cause and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddplaunch.checks.check import Check

_HOSTS = """
host-unreachable: No ssh connection to a host, or no answer before its deadline
    The machine, the network or sshd is down, or the login hangs: a start-up file that waits, a home directory on a
    dead file system. Each host has its own deadline (`--join-timeout`), so a slow one does not delay the others.
    Remedy: `ssh HOST true` must return quickly and print nothing.
host-connections-dropped: A host, or the jump host in front of it, closed every connection before ssh began
    By default sshd drops connections at random while more than 10 are logging in, and all beyond 100 (`MaxStartups
    10:30:100`). That happens with many hosts behind one jump host. ddplaunch then opens fewer connections at once and
    tries each up to 8 times before its deadline. Remedy: a higher `MaxStartups` there, or `ControlMaster auto` for
    the jump host, so that all hosts share one connection to it.
hosts-too-many: This machine cannot hold a session with each host
    Each host needs an ssh client and four open files in the launcher. The launcher raises its own soft limit on open
    files as needed; the administrator sets the hard limit. Remedy: raise `nofile`, or launch inside a Slurm allocation,
    where one `srun` reaches all hosts.
host-name-malformed: ssh does not accept this host name
    ssh would read a name with blanks or with a leading dash as an option. Remedy: correct the name.
host-named-twice: A host is listed twice
    Each host gets one node rank. Remedy: list it once, with all its processes.
host-unknown: `--exclude` names a host that is not in the list
    A misspelt name would silently change nothing. Remedy: use a name from `--hosts` or the host file.
hostfile-malformed: A line of the host file is in neither of the two known formats
    The formats are DeepSpeed's `host slots=4` and MPI's `host:4`; `#` starts a comment. Remedy: correct the line.
host-login-denied: A host refuses this user's login
    ssh runs without password prompts, because the launch may be unattended. Remedy: `ssh-copy-id HOST`, or `ssh-add`
    for a key with a passphrase.
host-key-unknown: This machine does not know the key of a host
    ssh would ask whether to trust it, but the launch may be unattended. Remedy: run `ssh HOST` once, and compare the
    fingerprint.
host-key-changed: The key of a host is not the one that this machine has stored
    The host was reinstalled, or another machine answers at its address. Remedy: ask its administrator for the
    fingerprint, then run `ssh-keygen -R HOST` and `ssh HOST` once.
host-without-python: A host does not have the interpreter of this launch
    All hosts start the same interpreter under the same path. Remedy: `--python PATH` with an interpreter that all hosts
    have.
host-without-ddplaunch: The interpreter on a host lacks ddplaunch or one of its dependencies
    Every host runs its part with the same ddplaunch, in the environment that trains. Remedy: install this machine's
    version there with the command in the finding, or name another interpreter with `--python PATH`.
host-answer-unknown: This ddplaunch does not understand the answer of a host
    Launcher and hosts speak a protocol that may change between versions. Remedy: the same version everywhere.
host-session-failed: The session on a host ended before the host answered
    ssh worked, but ddplaunch did not start there; the last line of the output says why. Remedy: run `PYTHON -m
    ddplaunch doctor` there by hand.
host-lost: The session with a host ended, or fell silent, while its ranks were running
    The machine lost power or network, or its sshd was killed. Launcher and hosts exchange heartbeats every two seconds;
    after `--host-timeout` without one, each side ends the run. Remedy: read the log on the host.
host-refused: A host refused its part of the launch
    Each host plans its own part again from its own facts, and something changed there after the check.
launcher-cut-off: All hosts were lost at once, which points to the launcher's network
    The hosts end the run when they hear nothing from the launcher for `--host-timeout`: its network was cut, its
    machine slept, or it was stopped. Remedy: launch from a machine that stays up and connected, or with `ddplaunch
    submit`.
launcher-lost: The launcher of a run over several hosts died without recording why
    The hosts end the run when the launcher's connection closes or stays silent for `--host-timeout`. Remedy: launch
    from a machine that stays up, inside `tmux`, or with `--detach`; `dmesg -T` and `last -x` on the launcher's machine
    show what happened to it.
host-silent: The session with a host ended while a command was asking it about a run
    `logs`, `stacks` and `top` use their own connection to each host; the run does not depend on it. Remedy: check that
    the host can be reached, and repeat the command.
hosts-not-connected: Hosts cannot reach the first host's port, or the first host theirs
    All ranks meet at rank 0's host, so each host connects to it before anything starts; then ranks connect to each
    other on every host, at ports that the kernel chooses. A firewall, a missing route or a separate network prevents
    that. Remedy: `--master-addr` with an address that all hosts reach, or `--master-port` if only some ports are open
    there; let TCP through between the hosts.
hosts-left-out: The job has further hosts, and nothing starts the launch there
    PBS and LSF start a command on the first host of a job alone. Remedy: `--hosts` starts the others by ssh;
    `--nnodes 1` trains on this host.
hosts-not-nodes: The number of nodes differs from the number of hosts
    Each host gets one node rank. Remedy: make the two numbers equal, or leave the number of nodes out.
slots-uneven: The host file gives hosts different numbers of slots
    Every node runs the same number of ranks. Remedy: the same number for all, as in `ddplaunch run 4x8 …`.
slots-exceeded: A host has fewer slots than processes
    The host file says how many processes a host takes. Remedy: fewer processes, or more slots.
ssh-missing: There is no `ssh` on this machine
    ddplaunch reaches hosts with the OpenSSH client and the user's own configuration, keys and jump hosts. Remedy:
    install it.
nodes-missing: Not all nodes joined within `--join-timeout`
    Nodes that are started by hand meet before torchrun starts, so that ddplaunch can name the missing ones; torchrun
    alone would wait ten minutes and name none. Remedy: start the command on the nodes that the finding names.
join-secret-differs: A node and the launch that it tried to join do not share a secret
    With the secret, nodes prove to each other that they belong to one launch, so that nobody else who reaches the port
    can start or end it. By default they share it through a file in the user's home directory, or through a variable
    that Slurm passes on. Where they share neither, every node must be given the secret. Remedy: the same
    DDPLAUNCH_JOIN_SECRET on all nodes.
node-rank-twice: Two nodes have the same node rank
    The second one would wait forever. Remedy: number the nodes from 0 with `--node-rank`, each number once.
node-rank-missing: The rank of this node is not known
    The nodes of a launch are numbered. Remedy: `--node-rank N`, or launch with `--hosts`, which numbers them.
master-addr-missing: The address where the nodes meet is not known
    Remedy: `--master-addr` with the address of node 0.
launches-differ: Nodes were started with different commands
    Sizes, script or numbers differ, so the ranks would disagree. Remedy: the same command on every node, except for
    `--node-rank`.
script-arguments-differ: Nodes pass different arguments to the script
    Ranks with different arguments may wait in different collectives. Remedy: the same arguments on every node.
roll-call-ended: Another node ended the launch while the nodes were meeting
    The launch was interrupted or refused there; the message on that node says why.
sbatch-missing: There is no `sbatch` on PATH
    `submit` hands the job to Slurm's own program. Remedy: run it on a login node, or `module load slurm`.
sbatch-failed: Slurm refused the job
    The finding quotes Slurm's message, which may be about a partition, an account or a limit. Remedy: correct that
    option; `--dry-run` prints the script.
srun-missing: There is an allocation, but no `srun` on PATH
    ddplaunch starts the nodes of an allocation as a job step. Remedy: `module load slurm`, or start the command with
    `srun`.
slurm-het-job: The allocation is a heterogeneous job
    Its components have different kinds of nodes, and a launch needs equal ones. Remedy: use one component.
slurm-job-cannot-start: The job will never start
    Slurm accepts jobs that ask for more than a partition has, and leaves them pending. Remedy: `scancel` it and ask
    for less.
slurm-unanswered: Slurm did not answer
    Its controller is down or overloaded. A job that was already accepted continues. Remedy: check the controller with
    `scontrol ping`.
"""

_LAUNCH = """
not-on-linux: The command needs Linux, but this is another system
    Starting, watching and ending ranks needs /proc, pidfds, and process groups that outlive their parent. On macOS and
    Windows, `plan`, `convert` and `explain` of a log work; on macOS, also `report`, `ps` and `logs` of copied records.
    Remedy: run the command on the machine that trains; on Windows, in WSL2, which is Linux.
line-not-converted: `ddplaunch convert` cannot translate this line
    The line has no equivalent, or its number of processes is known only when the script runs. It stays unchanged, and
    the rest is converted. Remedy: write the line by hand, as in `ddplaunch run 4 -- train.py`.
file-not-readable: `ddplaunch convert` cannot read this file
    The file is missing, a directory or not text, or this user may not read it. Remedy: name a shell script.
output-not-written: An option names a file that ddplaunch does not replace
    `report --output` writes a new file, or replaces an earlier page. It does not touch a training script of that name,
    a directory, a pipe or a dangling link. Remedy: another name, or `--force` to replace the file.
launcher-missing: `ddplaunch convert` found no launcher
    It looks for torchrun, accelerate and srun, and for `python -m` with their modules. Remedy: name a script that
    starts one of them.
removed: The option or command is gone
    An earlier version of ddplaunch had it. Remedy: the finding says what to use instead.
separator-missing: The script is not after `--`
    Words before `--` belong to ddplaunch and words after it to the script, so that neither takes the other's
    options. Remedy: the line that the finding prints.
script-missing: There is no script after `--`
    The script and its arguments go there. Remedy: `ddplaunch run 4 -- train.py --epochs 20`.
script-not-runnable: The file after `--` cannot be run
    It is a directory, or a file that is neither Python nor executable. Remedy: `chmod +x`, or the right file.
working-directory-missing: The working directory was deleted
    ddplaunch looks for scripts, configuration and records there. Remedy: `cd` to a directory that exists.
argument-too-long: An argument is longer than Linux allows
    The limit is 128 KiB for each argument (MAX_ARG_STRLEN, execve(2)). Remedy: write the text to a file and pass the
    name of the file.
stdout-not-writable: stdout cannot be written
    The disk is full or the pipe is closed, so the output is incomplete.
unknown-placeholder: A word in braces in the script's arguments is a misspelt placeholder
    `{batchsize}` would reach the script unchanged. Words in braces that resemble no placeholder are passed to the
    script as they are. Remedy: the placeholder that was meant, or doubled braces, `{{batchsize}}`, for literal ones.
script-option-unknown: `--batch-option` or a similar flag names an option that the script does not have
    Such a flag names the script's option for a number when reading the source found none, several or the wrong one. A
    number passed to an option that does not exist would end every rank. Remedy: an option that the script declares.
placeholder-without-number: A placeholder in the script's arguments has no value
    ddplaunch replaces `{lr}` and similar placeholders with numbers of the plan. Remedy: the flag that gives the number,
    or `{{lr}}` for literal braces.
secret-in-job: A batch script or manifest would contain a secret
    Clusters store that text and show it to others. Remedy: pass a reference, such as `--env NAME` or a Kubernetes
    secret.
"""

_GPU = """
gpu-not-found: `--gpus` names a GPU that does not exist
    Indices count from 0 in the driver's order; UUIDs are those of `nvidia-smi -L`. Remedy: `ddplaunch doctor` lists
    the GPUs.
gpus-invalid: `--gpus` takes indices, UUIDs or `free:N`
    Remedy: `--gpus 0,1`, `--gpus GPU-8f…`, or `--gpus free:2`.
gpus-too-few: `--gpus free:N` asks for more GPUs than there are
    CUDA_VISIBLE_DEVICES may hide some. Remedy: fewer, or a machine that has them.
gpus-not-free: Fewer GPUs are free than `--gpus free:N` asks for
    A GPU is free when no process holds memory on it and no other launch has locked it. Remedy: wait, ask for fewer,
    or name GPUs that you want to share.
no-gpu-to-count: `auto` has no GPUs to count
    `auto` means one process for each visible GPU. Remedy: a number, or `--device cpu`.
"""

_NUMBERS = """
batch-disagrees: Batch size, accumulation and global batch size contradict each other
    effective batch = batch size × accumulation × world size: two of the flags determine the third. Remedy: leave one
    out.
batch-does-not-divide: The global batch size cannot be shared evenly
    DDP averages over ranks with equal weights, so each rank must take the same number of samples per optimizer step.
    Remedy: one of the neighbouring numbers that the finding names.
batch-unknown: A number depends on the batch size, which is not known
    Steps per epoch and scaled learning rates follow from the effective batch. Remedy: `--batch-size`.
dataset-smaller-than-world: There are fewer samples than ranks
    DistributedSampler would repeat samples, or leave ranks without any. Remedy: fewer processes.
lr-given-twice: `--lr` and `--base-lr` are both given
    `--lr` is final, `--base-lr` is scaled to the effective batch: both set the same value. Remedy: give only one of
    them.
warmup-given-twice: `--warmup` and `--base-warmup` are both given
    `--warmup` is final, `--base-warmup` is scaled like the learning rate: both set the same value. Remedy: give only
    one of them.
nothing-to-scale: A scaling option has nothing to scale
    A scaling option only sets the factor for `--base-lr` and `--base-warmup`. Remedy: add one of these, or leave the
    scaling option out.
numbers-differ: The ranks do not train with the planned numbers
    At its first optimizer steps each rank records the learning rates, the batch size of its DataLoader or of the
    input of its DistributedDataParallel, the batches per step and the size of the process group. Some can differ
    from the plan because of the script's own default or scaling, an option with another meaning, or a checkpoint.
    Changes by a schedule of the script are not reported. `prove` reports ranks that step at different learning
    rates, or with other numbers of their optimizers, and schedules that follow a metric of their own rank. Remedy:
    the fix in the finding; `--ignore numbers-differ` if the difference is intended; `--no-observe` switches the
    comparison off.
no-process-group: Several ranks train, but none has joined a process group
    Without `torch.distributed.init_process_group` each rank trains its own model as if it ran alone, and every rank
    ends successfully. Remedy: the script's switch for distributed training, or one process.
gpus-not-used: Ranks of a launch on GPUs train on the CPU
    After its first optimizer step each rank records where its parameters are. If the script never moves its model to a
    GPU, or torch cannot use the driver, training is silently a hundred times slower. Remedy: `model.to("cuda")`, or a
    torch that fits the driver; `--device cpu` if the CPU is intended.
gpu-of-all-ranks: All ranks of a node take the same GPU
    `cuda()` and `torch.device("cuda")` mean the current GPU, which is number 0 until `torch.cuda.set_device` chooses
    another one; a number in the source is the same for all ranks. NCCL refuses two ranks on one GPU (`Duplicate GPU
    detected`); without NCCL they share its memory. ddplaunch detects this in the ranks' first steps. Remedy:
    `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything is moved to a GPU.
data-not-divided: Each rank trains on all samples
    The sampler of each rank's DataLoader takes all samples, or all ranks use the sampler of the same rank. An epoch
    then takes as long as with one process. ddplaunch detects this in the ranks' first steps. Remedy:
    `DistributedSampler(dataset)`, and `set_epoch` before each epoch.
sampler-epoch-not-set: Every epoch takes the samples in the same order
    DistributedSampler shuffles by its seed and its epoch. The epoch stays 0 unless the script sets it, so each rank
    sees the same samples in the same order in every epoch. Reported after three passes over the data, by `prove` after
    two. Remedy: `sampler.set_epoch(epoch)`.
gradients-not-averaged: Ranks share a process group, but nothing averages their gradients
    Each rank then trains its own model on its part of the samples, and the losses drift apart. Reported if nothing goes
    through the process group in the ranks' first steps, and by `prove` if gradients differ between ranks at a step.
    Remedy: `DistributedDataParallel(model)`.
replicas-differ: The parameters of the model are not the same on all ranks
    DistributedDataParallel copies rank 0's parameters to all ranks when it wraps a model, and only averages gradients
    of its own calls from then on. If one rank alone loads, initialises or multiplies parameters after that, or the
    script calls `.module` or a part of the model, or wraps nothing, ranks train different models. ddplaunch compares
    sums over the parameters at the ranks' third step, `prove` after every step. Remedy: call what was wrapped, and make
    changes on all ranks, or on rank 0 before wrapping the model
    (https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design).
number-out-of-range: A number is outside its range
    torch counts in signed 64-bit integers, and a learning rate is a positive finite number.
"""

_RUNS = """
rank-left-early: A rank ended with status 0 while others still waited for it
    A collective needs all ranks: the remaining ones wait forever, or lose their connection and are blamed for it. The
    rank that left had fewer batches, or took a `return`, `break` or `sys.exit` that other ranks did not take. Remedy:
    the same number of batches on all ranks (`DistributedSampler` with `drop_last=True`, `with Join([model]):`), or a
    decision to stop that all ranks make together.
unknown: The output and record of the run do not show why it failed
    The rank that failed printed neither an exception nor a reason, or all output is from ranks that lost another one.
    Remedy: read the failed rank's last lines, which are shown with this finding, and the logs of all nodes together.
run-not-found: No run of that name is recorded here
    Records are in `.ddplaunch/runs` below the working directory, unless `--run-dir` or DDPLAUNCH_DIR names another
    directory. Remedy: look for it with `ddplaunch ps --all`.
no-output-recorded: The run has no output of that rank
    The run has no such rank, or was started with `--no-capture`.
not-permitted: Processes of the run belong to another user
    Only their owner and root may end them.
other-hosts: The run has processes on other hosts
    A process can only be ended on its own host. Remedy: run the same command there.
does-not-end: A process is still there after SIGKILL
    A process in state D waits in the kernel for a device or a file server and takes no signal until that answers.
    Remedy: restart the file server or the machine.
configuration-not-yours: A configuration file of another user is not read
    It could set variables and import modules in the programs that you run, as a repository's configuration could in
    git. Files of root are read. Remedy: review the file, then make it yours.
run-id-in-use: A run with this id is still running
    Two runs with one id would write into the same record, and `stop` could not tell them apart. Remedy: another
    `--run-id`, or none.
record-not-yours: A record, or the directory that holds it, is not yours
    Through links, another user could redirect the ranks' output into your files, and could choose the hosts that `stop`
    connects to. Records belong to their user, and nobody else may read them. Remedy: `--run-dir DIR`, or DDPLAUNCH_DIR
    for every command.
record-not-removed: A record could not be deleted
    It belongs to another user, or its file system is read-only.
stacks-unavailable: No rank can show its stack
    The run was started with `--no-stacks`, or its ranks are not Python. Remedy: start the next run without
    `--no-stacks`.
"""
_PHASES = """
rank-late: The other ranks wait for one rank
    With `--phases` ranks record the phases of each step. A step ends when the last rank arrives, so the slowest rank
    hardly waits for communication while the others do. Remedy: shorten the phase that the finding names.
host-late: The ranks on all other hosts wait for one host
    With `--phases` ranks record the phases of each step. Even the fastest rank of this host works longer in a step than
    those of the others, so it is the host: a slower disk or processor, GPUs that are slowed down, other programs.
    Remedy: `ddplaunch top` shows which of these; until it is mended, `--exclude HOST`.
input-bound: The ranks wait for data
    With `--phases` ranks record how long they wait for the DataLoader. This is reported if it is a quarter of the time
    or more. Remedy: as many workers per rank as it has CPUs; if that is not enough, samples that are cheaper to load.
threads-exceed-cpus: The ranks compute with more threads than there are CPUs
    At the end of every operation a rank waits for its last thread. A thread that has to wait for a CPU delays the whole
    rank, so more threads make it slower. Remedy: set OMP_NUM_THREADS to the CPUs divided by the ranks, as ddplaunch
    does by default.
communication-bound: Communication that does not overlap with computation takes much of the time
    With `--phases` ranks record how long they wait for each other's gradients. This is reported if it is a quarter of
    the time or more, and no rank is late. Remedy: more computation per step, by a larger batch or by accumulation
    without communication in between; faster links.
cpus-used-up: More processes share the same CPUs
    `scale` compares how long a rank computes in a step. If fewer processes already kept the CPUs busy, each of more
    processes computes longer, and the total is not faster. Remedy: more machines; no setting on this one helps.
speed-up-low: More processes speed training up less than they could
    The speed-up is less than 80 % of the ideal. Either no single phase of a step explains it, or GPUs compute longer
    than with fewer processes, because together they share power, cooling, PCIe and CPUs. Remedy: a larger batch for
    each process, so that the fixed cost of a step weighs less; `ddplaunch top --json` shows clocks and power.
size-not-here: A size needs more processes than this machine has room for
    `scale` gives each process a GPU of its own, or at least a quarter of a CPU. Remedy: smaller sizes.
trial-refused: The launch of a trial is refused
    A trial is a run with all its checks, and one of them found an error. Remedy: fix what that error names.
trial-failed: A trial failed before it was measured
    The script ended with an error, or was killed. Remedy: `ddplaunch explain` with the trial's name.
trial-ended-early: The script ended before it could be measured
    Step times have to settle first: some steps of warmup, then ten similar ones. Remedy: let the script train for
    longer.
trial-without-steps: A trial made too few optimizer steps in its time
    The ranks are still loading, are waiting for each other, or step without an optimizer of torch. Remedy: a longer
    `--timeout`; `ddplaunch.step(samples=…)` in the script marks a step.
trial-without-samples: The measured steps had no samples
    The ranks counted 0 samples in each step, or epochs passed without a batch, as with `drop_last=True` and less data
    than a batch. Remedy: check the data and its sampler, or use a smaller batch.
trial-interrupted: A trial was interrupted
    Ctrl-C ended it before enough was measured. Remedy: the same command again.
batch-never-fits: Even the smallest possible batch does not fit into memory
    `fit` has tried it. Weights, gradients, optimizer state and libraries take memory at any batch size. Remedy: smaller
    inputs or a smaller model, activation checkpointing, FSDP, or a larger `--memory`.
batch-not-taken: The script does not take its batch size from outside, or trains with another one
    `fit` tries batch sizes by passing them to the script. Remedy: give the script an option for it, or name the option
    and its meaning, as in `--batch-option NAME:total` for the batch of all ranks.
"""

_PROVED = """
gradients-summed: The gradients of a step are the sum over ranks, not the mean
    This is right only if the loss is divided by the world size, which was not measured: one process does not get the
    same samples. Remedy: divide by the world size after an `all_reduce` of gradients.
gradients-divided-twice: The gradients of a step are divided by the world size twice
    DistributedDataParallel already divides, and the script divides the loss or the gradients again. Remedy: remove the
    script's division.
gradients-not-cleared: A step uses the gradients of earlier steps again
    Backward passes add to `.grad`, which keeps its value until it is cleared. Remedy: `optimizer.zero_grad()` after
    each step.
gradients-cleared-early: Gradients are cleared between a backward pass and the step
    The gradients of that pass are lost. Remedy: `optimizer.zero_grad()` after the step only.
clipped-before-average: Each rank clips its own gradients before they are averaged
    Ranks with large gradients then count less. Remedy: average first, then clip.
passes-summed: The gradients of several backward passes are added up, not averaged
    Each loss is a mean over its own batch, so SGD steps as many times as far as with one batch of all samples. Remedy:
    divide the loss by the number of passes, unless the learning rate was chosen for the sum.
random-numbers-alike: Datasets draw the same random numbers on all ranks
    Samples of different ranks are then augmented alike. `prove` asks the dataset of each rank for its first sample
    twice: the two differ, but are the same on all ranks. Remedy: `torch.manual_seed(seed + rank)` after the model
    is created.
schedule-too-fast: A schedule makes as many steps per optimizer step as there are ranks
    Its length counts optimizer steps, so it ends after a fraction of the training; accelerate makes N steps of a
    prepared schedule at each step. Remedy: one `scheduler.step()` per step, or with accelerate the length of the
    DataLoader before `prepare`.
models-differ: What a model computes with, beside the parameters of optimizers, is not the same on all ranks
    Only rank 0 updates a moving average of the weights, or each rank keeps a codebook or the statistics of BatchNorm of
    its own batches. Remedy: update it on all ranks alike; for BatchNorm `SyncBatchNorm.convert_sync_batchnorm(model)`,
    or leave `broadcast_buffers` on.
data-overlaps: Some samples go to several ranks, or a rank trains on a part of its own samples only
    Samples that several ranks have count more than others. Remedy: a DistributedSampler, unless each rank has a dataset
    of its own.
evaluation-not-reduced: Each rank evaluates a part of the samples, and nothing combines the results
    The metric that a rank prints covers its own samples only. Remedy: `dist.all_reduce` on sums and counts.
file-of-all-ranks: Several ranks write the same file
    They overwrite each other, and the file may end up corrupt. Remedy: write it on rank 0 only.
ranks-run-out: Ranks do not have the same number of batches
    At the end of the epoch those that have batches left wait for the others, or never train on their last samples.
    Remedy: as many batches on all ranks, as DistributedSampler gives, or `Join` with optimizers that keep no state.
gradient-cut: The loss is that of one process with the same samples, but its gradient is not
    The loss compares the samples of all ranks, and `dist.all_gather` returns values without gradient. Remedy:
    `torch.distributed.nn.functional.all_gather`.
differs-from-one-process: The gradients of several ranks are a multiple of those of one process
    `prove` replays the samples of all ranks in one process. The mean over ranks equals its gradient if the loss is a
    mean over the batch, but not if it is a sum. Remedy: `reduction="mean"`.
ranks-count-alike: The mean over ranks is not the gradient of one process, which gives ranks different shares
    The loss is a mean over something that ranks have different numbers of, such as the tokens of a batch. Remedy:
    `dist.all_reduce` the numbers, and divide the sum of losses of a rank by their mean.
"""


def _entries(family: str, table: str) -> Iterator[Check]:
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *explanation = entry.splitlines()
        code, _, title = head.partition(": ")
        yield Check(code, family, title, " ".join(line.strip() for line in explanation), (), tuple)


REFUSALS: tuple[Check, ...] = (
    *_entries("hosts", _HOSTS),
    *_entries("launch", _LAUNCH),
    *_entries("gpu", _GPU),
    *_entries("numbers", _NUMBERS),
    *_entries("runs", _RUNS),
    *_entries("running", _PHASES),
    *_entries("proof", _PROVED),
)
