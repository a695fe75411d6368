"""The output of `ddplaunch submit`: the batch script, and what was submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.hosts.slurm.job_reasons import waits_for
from ddplaunch.hosts.slurm.programs import JobState
from ddplaunch.planning.job.sbatch import BatchScript
from ddplaunch.planning.job.submission import Submission
from ddplaunch.ui.shell import command_lines, quote
from ddplaunch.ui.table import panel
from ddplaunch.ui.terminal import Terminal, visible
from ddplaunch.values.words import count

_WIDTH = 100  # of a batch script
_REQUEUE_BEFORE_S = 15  # Slurm refuses to requeue a job after its time limit
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z")


def sbatch_text(batch: BatchScript, environ: Mapping[str, str] | None = None) -> str:
    """Return the batch script: options, the user's setup, one srun line.

    Likely secrets become variables, which sbatch passes on; ``environ`` are the variables that have a value.
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("ddplaunch.ui", "."), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template("batch.sh").render(
        batch=batch,
        about=visible(batch.about),
        directives=map(directive_text, batch.directives),
        requeue_s=_REQUEUE_BEFORE_S,
        inside_of_a_job="SLURM_JOB_ID" in (environ or ()),
        command=command_lines(batch.command, _WIDTH - 2, variables=environ),
    )


def directive_text(directive: str) -> str:
    """Return an option for a ``#SBATCH`` line, with its value in double quotes where that is needed.

    Slurm does not read it like a shell: https://github.com/SchedMD/slurm/blob/master/src/sbatch/opt.c (_get_next_opt).
    """
    if _PLAIN.match(directive):
        return directive
    name, value = re.findall(r"(?s)(--[^=]*=|-.)(.*)", directive)[0]
    escaped = re.sub(r'(["\\])', r"\\\1", visible(value))
    return f'{name}"{escaped}"'


def submitted_text(job: str, batch: BatchScript, log: str, state: JobState | None, terminal: Terminal) -> str:
    """Return lines about what was submitted, where its log is, and how to follow and cancel it."""
    rows = {
        "now": "" if state is None else state_text(state),
        "log": log,
        "follow": f"`tail -F {quote(log)}`",
        "cancel": f"`scancel {job}`",
    }
    return _panel(f"submitted {'array ' if batch.array else ''}job {job}: {batch.about}", rows, terminal)


def manifest_text(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the objects of a manifest as YAML, one document each."""
    return "---\n".join(map(yaml_text, objects))


def printed_text(submission: Submission, terminal: Terminal) -> str:
    """Return lines about a printed manifest, and what kubectl can do with it."""
    logs = f"kubectl logs -l batch.kubernetes.io/job-name={submission.name} --prefix --tail=-1"
    several = f" --max-log-requests={submission.nodes}" if submission.nodes > 1 else ""
    rows = {
        "create": "the same command with `| kubectl apply -f -` at its end",
        "follow": f"`{logs} -f{several}`",
        "why": f"`{logs} | ddplaunch explain -`",
    }
    head = f"printed job {submission.name}: {submission.script} on {count(submission.nodes, 'node')}"
    return _panel(head, rows, terminal)


def _panel(head: str, rows: Mapping[str, str], terminal: Terminal) -> str:
    return terminal.page([f"{terminal.paint('ddplaunch', 'bold')} {visible(head)}", *panel(rows.items(), terminal)])


# Texts that every YAML reader takes as text; all others are quoted, including words that YAML 1.1 reads as booleans.
# PyYAML alone would leave 1e3 bare, which Kubernetes' reader takes as a number.
_BARE = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[a-z/][a-z0-9._/-]*\Z", re.IGNORECASE)


def yaml_text(value: Mapping[str, Any]) -> str:
    """Return JSON values as block-style YAML in their own order, each text on one line."""
    import yaml  # 20 ms, needed only for manifests

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=None if _BARE.match(data) else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(
        value, Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=float("inf")
    )


def state_text(state: JobState) -> str:
    """Return ``pending (Resources): waits until enough is free``, ``running on gpu[1-2]``, ``completed``."""
    word = state.state.lower().replace("_", " ")
    if state.state == "PENDING" and state.reason:
        waits = waits_for(state.reason)
        return f"{word} ({state.reason})" + (f": {waits}" if waits else "")
    return f"{word} on {state.nodes}" if state.state == "RUNNING" and state.nodes else word
