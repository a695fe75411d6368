"""What `ddplaunch explain CODE` says of findings that no check makes: of hosts, the command line, numbers and runs.

Each entry is a code with its title and, indented below it, why it happens and what helps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddplaunch.checks.check import Check

_HOSTS = """
host-unreachable: No ssh connection to a host, or no answer within its deadline
    The machine, the network or its sshd is down, or its login hangs: a start-up file that waits, a home directory on
    a dead file system. Each host has its own deadline (`--join-timeout`), and costs the others nothing. Remedy: `ssh
    HOST true` has to be quick and silent.
host-connections-dropped: A host, or the jump host in front of it, closed every connection before ssh began
    sshd drops connections at random while more than 10 are logging in, and all beyond 100 (`MaxStartups 10:30:100`),
    which happens where many hosts are behind one jump host. Fewer are then begun at once, and each is tried up to 8
    times within its deadline. Remedy: a higher `MaxStartups` there, or `ControlMaster auto` for the jump host, so
    that all hosts share one connection to it.
hosts-too-many: This machine cannot hold a session with each host
    A host takes an ssh client and four open files of the launcher. The soft limit of open files is raised as far as
    it has to be; the hard limit is the administrator's. Remedy: raise `nofile`, or launch inside a Slurm allocation,
    where one `srun` reaches all hosts.
host-name-malformed: A host's name is none that ssh takes
    A name with blanks, or one that begins with a dash, would be read as an option of ssh. Remedy: correct it.
host-named-twice: A host is listed twice
    Each host gets one node rank. Remedy: name it once, with all its processes.
host-unknown: `--include` or `--exclude` names a host or a slot that the list does not have
    A misspelt name would change nothing without a word. Remedy: a name from `--hosts` or the host file.
hostfile-malformed: A line of the host file is none of the two forms
    DeepSpeed's `host slots=4` and MPI's `host:4` are read, with `#` for comments. Remedy: correct the line.
host-login-denied: A host does not let this user in
    Nothing asks for a password, since nobody may be there to type it. Remedy: `ssh-copy-id HOST`, or `ssh-add` for a
    key with a passphrase.
host-key-unknown: The host key of a host is not known here
    ssh would ask whether to trust it, and nobody may be there to answer. Remedy: `ssh HOST` once, and compare the
    fingerprint.
host-key-changed: A host has another host key than the one that is known
    It was installed anew, or another machine answers in its place. Remedy: ask its administrator for the fingerprint,
    then `ssh-keygen -R HOST` and `ssh HOST` once.
host-without-python: A host does not have the interpreter of this launch
    All hosts start the same interpreter under the same path. Remedy: `--python PATH` with one that all have.
host-without-ddplaunch: The interpreter on a host lacks ddplaunch, or what it needs
    Every host runs its part with the same ddplaunch, in the environment that trains. Remedy: `PYTHON -m pip install
    ddplaunch` there, or `--python PATH`.
host-answer-unknown: A host answered what this ddplaunch does not understand
    Launcher and hosts speak a protocol of their own. Remedy: the same version everywhere.
host-session-failed: The session on a host ended before it answered
    ssh worked, but ddplaunch did not start there; the last line that was printed says why. Remedy: start `PYTHON -m
    ddplaunch.machine` there by hand.
host-left-out: A host did not answer, and the launch goes on without it
    `--nnodes MIN:MAX` allows it: the hosts that answered are enough.
host-lost: The session with a host ended, or fell silent, while its ranks were running
    The machine lost power or network, or its sshd was killed. Launcher and host send each other a sign of life every
    two seconds; after 15 s without one each side ends the run. Remedy: look at the host's own log.
host-refused: A host refused its part of the launch
    Every host decides its part again from what it sees itself, and something has changed there since it was asked.
launcher-cut-off: All hosts were lost at once, so it was the launcher's network that failed
    The hosts end the run when they hear nothing for 15 s. Remedy: launch from a machine that stays connected, inside
    `tmux`, or by `ddplaunch submit`.
launcher-stood-still: The launcher was stopped or asleep, and its hosts took it for dead
    A closed lid or a suspended virtual machine stops it. Remedy: launch from a machine that does not sleep.
hosts-not-connected: Hosts cannot reach the first host's port
    All ranks meet at rank 0's host, so each host connects to it before anything is started. A firewall, a missing
    route or another network stands between. Remedy: `--master-addr` with an address that all reach, `--master-port`
    where only some ports are open.
hosts-not-nodes: The number of nodes is not the number of hosts
    Each host gets one node rank. Remedy: the same number, or leave it away.
slots-uneven: The host file gives hosts different numbers of slots
    Every node runs the same number of ranks. Remedy: one number, as in `ddplaunch run 4x8 …`.
slots-exceeded: More processes than a host has slots
    The host file says how many a host takes. Remedy: fewer processes, or more slots.
ssh-missing: There is no `ssh` here
    Hosts are reached by OpenSSH's own client, with the user's configuration, keys and jump hosts. Remedy: install it.
nodes-missing: Not all nodes joined within `--join-timeout`
    Nodes that are started by hand meet before torchrun starts, so that those who are missing can be named; torchrun
    itself would wait ten minutes and name nobody. Remedy: start the command on the nodes that are named.
node-rank-twice: Two nodes have the same node rank
    The second one would wait for ever. Remedy: `--node-rank` from 0 on, each number once.
node-rank-missing: Nothing says which node this is
    Several nodes need an order. Remedy: `--node-rank N`, or a launch by `--hosts`, where each host gets its own.
master-addr-missing: Nothing says where the nodes meet
    Remedy: `--master-addr` with the address of node 0.
master-addr-link-local: The address where the nodes meet means something on one link only
    An IPv6 address with `%` and an interface behind it is true on that interface of one machine, and torchrun takes
    none. Remedy: another address of node 0, which `ip -brief address` shows there.
launches-differ: Nodes were started with different commands
    Sizes, script or numbers differ, so the ranks would disagree. Remedy: the same command on every node, but for
    `--node-rank`.
script-arguments-differ: Nodes pass different arguments to the script
    Ranks with other arguments may wait in other collectives. Remedy: the same arguments on every node.
roll-call-ended: Another node ended the launch while the nodes were meeting
    It was interrupted or refused there; its own message says why.
sbatch-missing: There is no `sbatch` on PATH
    `submit` hands the job to Slurm's own program. Remedy: run it on a login node, or `module load slurm`.
sbatch-failed: Slurm refused the job
    The finding quotes what Slurm said: a partition, an account, a limit. Remedy: correct that option; `--dry-run`
    prints the script.
srun-missing: There is an allocation, but no `srun` on PATH
    Nodes of an allocation are started as a step. Remedy: `module load slurm`, or start the command by `srun`.
slurm-het-job: The allocation is a heterogeneous job
    Its components have different nodes, and a launch needs nodes that are alike. Remedy: one component.
slurm-job-cannot-start: The job waits for something that will not come
    Slurm accepts jobs that ask for more than a partition has, and leaves them pending. Remedy: `scancel` it and ask
    for less.
slurm-unanswered: Slurm did not answer
    Its controller is down or overloaded. The job, if there is one, goes on. Remedy: `scontrol ping`.
"""

_LAUNCH = """
separator-missing: The script is not behind `--`
    What is in front of `--` belongs to ddplaunch, all behind it to the script, so that no option is taken for the
    other's. Remedy: the line that the finding prints.
script-missing: Nothing stands behind `--`
    The script and its arguments go there. Remedy: `ddplaunch run 4 -- train.py --epochs 20`.
script-not-runnable: What stands behind `--` cannot be run
    It is a directory, or a file that is neither Python nor executable. Remedy: `chmod +x`, or the right file.
working-directory-missing: The working directory was deleted
    Scripts, configuration and records are looked up from it. Remedy: `cd` to a directory that exists.
argument-too-long: A word of the command line is longer than Linux passes to a program
    The limit is 128 KiB a word (MAX_ARG_STRLEN, execve(2)). Remedy: write it to a file and pass the file's name.
stdout-not-writable: stdout cannot be written
    A full disk or a closed pipe is behind it, and what was asked for goes there.
placeholder-without-number: A placeholder in the script's arguments has no value
    `{lr}` and the like are replaced by numbers of the plan. Remedy: the flag that gives the number, or `{{lr}}` where
    the braces are meant.
secret-in-job: A batch script or manifest would hold a secret
    Clusters keep that text and show it to others. Remedy: a reference, as `--env NAME` or a Kubernetes secret.
"""

_GPU = """
gpu-not-found: `--gpus` names a GPU that is not there
    Indices count from 0 in the driver's order; UUIDs are those of `nvidia-smi -L`. Remedy: `ddplaunch doctor`.
gpus-invalid: `--gpus` is none of indices, UUIDs and `free:N`
    Remedy: `--gpus 0,1`, `--gpus GPU-8f…`, or `--gpus free:2`.
gpus-not-free: Fewer GPUs are free than `--gpus free:N` asks for
    A GPU counts as free when no process holds memory on it and no other launch has it locked. Remedy: wait, ask for
    fewer, or name GPUs that are to be shared.
no-gpu-to-count: `auto` has no GPUs to count
    It is one process for each visible GPU. Remedy: a number, or `--device cpu`.
"""

_NUMBERS = """
batch-disagrees: Batch size, accumulation and global batch size contradict each other
    effective batch = batch size × accumulation × world size: two of them decide the third. Remedy: leave one away.
batch-does-not-divide: The global batch size cannot be shared evenly
    DDP averages over ranks with equal weights, so each must take equally many samples per optimizer step. Remedy: one
    of the neighbours that the finding names.
batch-unknown: A number needs the batch size, and none is known
    Steps per epoch and scaled learning rates follow from the effective batch. Remedy: `--batch-size`.
dataset-smaller-than-world: There are fewer samples than ranks
    DistributedSampler would repeat samples, or leave ranks without any. Remedy: fewer processes.
lr-given-twice: `--lr` and `--base-lr` are both given
    `--lr` is final, `--base-lr` is scaled to the effective batch: both set one value. Remedy: one of them.
nothing-to-scale: An option of scaling has nothing to scale
    It only decides what `--base-lr` and `--base-warmup` are multiplied by. Remedy: one of these, or leave it out.
number-out-of-range: A number is outside of what can be computed with
    torch counts in signed 64-bit integers, and a learning rate is a positive finite number.
unknown-lr-scaling: `--lr-scaling` names no rule
    `linear`, `sqrt` and `none` are defined.
"""

_RUNS = """
run-not-found: No run of that name is recorded here
    Records are in `.ddplaunch/runs` below the working directory, unless `--run-dir` or DDPLAUNCH_DIR moved them.
    Remedy: `ddplaunch ps --all`.
no-output-recorded: The run has no output of that rank
    It has other ranks, or was started with `--no-capture`.
no-metrics-recorded: The run has no recorded metrics
    They are kept where a run is started with `--record-metrics`.
not-permitted: Processes of the run belong to somebody else
    Only their owner and root may end them.
other-hosts: The run has processes on other hosts
    A process is ended on the host that it runs on. Remedy: the same command there.
does-not-end: A process is still there after SIGKILL
    In state D the kernel waits for a device or a file server and takes no signal until it answers. Remedy: restart
    the file server or the machine.
gpu-memory-not-freed: A GPU still counts memory of processes that are gone
    The driver has not taken it back, or a process in another container shares it. Remedy: `sudo fuser -v
    /dev/nvidia*`, and a reset of the GPU as the last resort.
record-not-removed: A record could not be deleted
    It belongs to somebody else, or is on a file system that is read-only.
stacks-unavailable: No rank shows where it is
    py-spy is missing or may not look, and the run was not started with `--stacks`. Remedy: one of the two.
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
)


def by_code(code: str) -> Check | None:
    """Return the entry of that code."""
    return next((each for each in REFUSALS if each.code == code), None)
