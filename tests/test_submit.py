"""``ddplaunch submit`` for Slurm: the batch script that people read, and what is refused before there is one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import ddplaunch.cli.submit
from ddplaunch.explain.as_json import diagnosis_json
from ddplaunch.hosts import slurm_follow
from ddplaunch.hosts.slurm import JobState, parse_job, parse_sacct
from ddplaunch.hosts.slurm_end import diagnosis
from ddplaunch.hosts.slurm_reasons import never, waits_for
from ddplaunch.launch.submission import job_name, parse_time
from ddplaunch.ui.batch_script import directive_text
from ddplaunch.ui.submitted import ended_finding, exit_status_of, state_text
from tests.cli_calls import Call, call, folder
from tests.conftest import Golden

__all__ = ["call", "folder"]  # fixtures

SCONTROL = """\
JobId=12 JobName=train
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   RunTime=00:00:02 TimeLimit=00:05:00 TimeMin=N/A
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList=vn[1-2]
   Command=(null)
   WorkDir=/home/me/a JobState=FAILED b
   StdOut=/home/me/a JobState=FAILED b/slurm-12.out
"""


@pytest.fixture(autouse=True)
def one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name ddplaunch alike on every machine."""
    monkeypatch.setattr(ddplaunch.cli.submit, "program", lambda: ("/opt/env/bin/ddplaunch",))


def programs(place: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Put shell programs of these names in front of PATH."""
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


FULL = (
    *("--nodes", "2", "--gpus-per-node", "4", "--time", "24:00:00", "--partition", "gpu", "--account", "lab"),
    *("--qos", "high", "--mem", "200G", "--cpus-per-task", "32", "--constraint", "h100&nvlink"),
    *("--sbatch-arg", "--exclude node7", "--sbatch-arg=--comment='it\"s 5% \\ #1'"),
    *("--setup", "module load cuda/12.8", "--setup", "source ~/env.sh", "--requeue", "--grace", "120"),
    *("--batch-size", "8", "--base-lr", "1e-4", "--env", "NOTE=a b", "--no-nccl-ib", "--profile", "big"),
)


def test_every_option_has_its_place_in_the_script(call: Call, folder: Path, golden: Golden) -> None:
    (folder / "ddplaunch.toml").write_text("[profiles.big]\nworkers = 4\n")
    said = call("submit", *FULL, "--dry-run", "--", "train.py", "--epochs", "20", "it's", "$HOME", "a\nb")
    assert (said.status, said.err) == (0, "")
    golden("submit-full", said.out)


def test_the_shortest_script(call: Call, golden: Golden) -> None:
    said = call("submit", "4", "--dry-run", "--", "train.py")
    assert said.status == 0
    golden("submit-short", said.out)


def test_the_script_is_shell_and_hands_every_argument_on(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = ["a b", "$HOME", "it's", '"', "`id`", "a\nb", "\\", "*", "é"]
    text = call("submit", "2x4", "--setup", "export X=1", "--dry-run", "--", "train.py", *hostile).out
    programs(tmp_path / "bin", monkeypatch, srun='shift 3; printf "%s\\0" "$@" > words')
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    assert words == ["/opt/env/bin/ddplaunch", "run", "4", "--", "train.py", *hostile]


@pytest.mark.parametrize(("limit", "requeued"), [("0:1:6", True), ("24:00:00", False)])
def test_a_failure_at_the_time_limit_is_requeued_and_an_early_one_is_not(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, requeued: bool
) -> None:
    text = call("submit", "2", "--time", limit, "--grace", "1", "--requeue", "--dry-run", "--", "train.py").out
    programs(tmp_path / "bin", monkeypatch, srun="exit 143", scontrol='echo "$@" > asked')
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, check=False)
    assert done.returncode == 143
    assert (tmp_path / "asked").exists() == requeued


def test_a_setup_line_that_fails_ends_the_job(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = call("submit", "2", "--setup", "false", "--dry-run", "--", "train.py").out
    programs(tmp_path / "bin", monkeypatch, srun="touch started")
    assert subprocess.run(["bash", "-c", text], cwd=tmp_path, check=False).returncode == 1
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--time", "tomorrow"), "`--time tomorrow`"),
        (("--time", "0"), "no limit at all"),
        (("--time", "10", "--grace", "600"), "not less than the time limit"),
        (("--nodes", "0"), "`--nodes 0`"),
        (("1x4", "--nodes", "0"), "it counts from 1"),
        (("1x4", "--nodes", "2"), "contradicts 1 node from"),
        (("--nodes", "two"), "not a whole number"),
        (("2x4", "--nodes", "3"), "contradicts 2 nodes"),
        (("--nnodes", "2:4"), "fixed number of nodes"),
        (("8", "--gpus-per-node", "4"), "8 processes per node"),
        (("--gpus", "0,1"), "--gpus-per-node N"),
        (("--node-rank", "1"), "`--node-rank 1`"),
        (("--mem", "lots"), "memory per node"),
        (("--partition", "a\nb"), "`--partition`"),
        (("--sbatch-arg", "--nodes=4"), "say it by --nodes"),
        (("--sbatch-arg", "-N4"), "say it by --nodes"),
        (("--sbatch-arg", "exclusive"), "not one option"),
        (("--sbatch-arg", "--comment='a"), "unbalanced quote"),
        (("--sbatch-arg", "--array=0-3", "--wait"), "an array is many"),
        (("--env", "WANDB_API_KEY=0123456789abcdef"), "`export WANDB_API_KEY`"),
        (("--to", "pbs"), "`--to pbs`"),
        (("--image", "a:b"), "no option for slurm"),
        (("--to", "kubernetes"), "kubectl apply"),
    ],
)
def test_what_cannot_be_submitted_is_refused_with_what_to_type(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call("submit", *words, "--", "train.py")
    assert answer.status == 2 and answer.out == ""
    assert said in " ".join(answer.err.split()) and "nothing was submitted" in answer.err


def test_a_missing_script_and_a_missing_sbatch_are_findings(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error[script-not-found]" in call("submit", "2", "--", "nowhere.py").err
    assert "error[script-missing]" in call("submit", "2").err
    monkeypatch.setenv("PATH", "/nowhere")
    answer = call("submit", "2", "--", "train.py")
    assert answer.status == 4 and "error[sbatch-missing]" in answer.err


@pytest.mark.parametrize(
    ("spoken", "what", "fix"),
    [
        (
            "sbatch: error: invalid partition specified: x\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "Invalid partition name specified",
            "sinfo -s",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "Requested",
            "%G",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "Unable",
            "ping",
        ),
        (
            'sbatch: unrecognized option "--x"\nTry "sbatch --help" for more information',
            'unrecognized option "--x"',
            "sbatch --help",
        ),
        ("", "it said nothing", "--dry-run"),
    ],
)
def test_what_sbatch_refuses_is_told_in_its_words_with_a_fix(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoken: str, what: str, fix: str
) -> None:
    programs(tmp_path / "bin", monkeypatch, sbatch=f"cat >/dev/null; printf '%s' '{spoken}' >&2; exit 1")
    answer = call("submit", "2", "--", "train.py")
    told = " ".join(answer.err.split())
    assert answer.status == 4 and answer.out == ""
    assert f"error[sbatch-failed]: sbatch refused the job: {what}" in told and fix in told


def test_a_job_is_submitted_with_its_id_on_stdout(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SCONTROL.format(state="RUNNING", reason="None", code="0:0")
    programs(
        tmp_path / "bin",
        monkeypatch,
        sbatch='cat > got; echo "$@" > options; echo "12;cluster"',
        scontrol=f"cat <<'END'\n{running}END",
    )
    answer = call("submit", "2x4", "--", "train.py")
    assert (answer.status, answer.out) == (0, "12\n")
    assert "submitted job 12: train.py on 2 nodes with 4 GPUs each\n  now     running on vn[1-2]\n" in answer.err
    assert "tail -F '/home/me/a JobState=FAILED b/slurm-12.out'" in answer.err and "scancel 12" in answer.err
    assert "#SBATCH --nodes=2" in (folder / "got").read_text()
    assert (folder / "options").read_text() == "--parsable\n"


def test_every_job_of_an_array_has_a_log_of_its_own(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SCONTROL.format(state="RUNNING", reason="None", code="0:0")
    programs(tmp_path / "bin", monkeypatch, sbatch="cat > got; echo 12", scontrol=f"cat <<'END'\n{running}END")
    for words in ("--array=0-3", "-a 0-3"):
        answer = call("submit", "2x4", "--sbatch-arg", words, "--", "train.py")
        assert "submitted array job 12" in answer.err and f"{folder}/slurm-12_INDEX.out" in answer.err
        assert "#SBATCH --output=slurm-%A_%a.out" in (folder / "got").read_text()


def test_a_directory_that_slurm_would_misread_is_spelled_for_it(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path / "bin", monkeypatch, sbatch='cat >/dev/null; echo "$@" > options; echo 12', scontrol="exit 1")
    inner = folder / "50% \\"
    for place, name in ((folder / "50% a", "50%% a/slurm-%j.out"), (inner, "50% \\\\/slurm-")):
        place.mkdir()
        (place / "train.py").write_text("")
        monkeypatch.chdir(place)
        answer = call("submit", "2", "--", "train.py")
        assert answer.status == 0 and f"{place}/slurm-" in answer.err
        assert f"--output={folder}/{name}" in (place / "options").read_text()


def test_a_job_that_can_never_start_is_taken_back(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = SCONTROL.format(state="PENDING", reason="PartitionNodeLimit", code="0:0")
    programs(
        tmp_path / "bin",
        monkeypatch,
        sbatch="cat >/dev/null; echo 12",
        scontrol=f"cat <<'END'\n{pending}END",
        scancel='echo "$@" > cancelled',
    )
    answer = call("submit", "9x4", "--", "train.py")
    assert answer.status == 4 and "error[slurm-job-cannot-start]" in answer.err
    assert Path("cancelled").read_text() == "12\n"


def test_the_node_that_failed_first_decides_the_exit_status_of_wait(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = SCONTROL.format(state="FAILED", reason="NonZeroExitCode", code="143:0").replace(
        "/home/me/a", str(tmp_path)
    )
    scontrol = f"cat <<'END'\n{failed}END"
    programs(tmp_path / "bin", monkeypatch, sbatch="cat >/dev/null; echo 12", scontrol=scontrol)
    monkeypatch.setattr(slurm_follow, "_SETTLE_S", 0.01)
    run = folder / ".ddplaunch/runs/slurm-12.0"
    (run / "node-1").mkdir(parents=True)
    rank = {"ended_by": "itself", "exit_code": 42, "signal": None, "ended_s": 5.0}
    outcome = {"state": "failed", "exit_status": 42, "node": 1, "ended_s": 9.0, "first_failed_rank": 3}
    (run / "node-1/outcome.json").write_text(json.dumps({**outcome, "attempts": [{"ranks": [rank]}]}))
    (run / "outcome.json").write_text(json.dumps({**outcome, "node": 0, "exit_status": 1, "attempts": []}))
    answer = call("submit", "2x4", "--wait", "--", "train.py")
    told = " ".join(answer.err.split())
    assert "Slurm's own status for the job, 143, is that of a node that was ended later" in told
    assert answer.status == 42 and "job 12 failed with exit status 42 on node 1, rank 3" in told
    assert "`ddplaunch explain slurm-12.0`" in told
    (run / "node-1/outcome.json").write_text("{")
    (run / "outcome.json").unlink()
    assert call("submit", "2x4", "--wait", "--", "train.py").status == 143
    limit = diagnosis("12", JobState("TIMEOUT"))
    assert limit is not None
    (run / "outcome.json").write_text(json.dumps({"state": "terminated", "diagnosis": diagnosis_json(limit)}))
    answer = call("submit", "2x4", "--wait", "--", "train.py")
    assert answer.status == 143 and "error[time-limit]: job 12 reached its time limit" in answer.err


def test_the_state_of_a_job_is_read_past_a_directory_that_looks_like_one() -> None:
    state = parse_job(SCONTROL.format(state="RUNNING", reason="None", code="0:0"))
    assert (state.state, state.reason, state.nodes, state.ended) == ("RUNNING", "", "vn[1-2]", False)
    assert state.log == "/home/me/a JobState=FAILED b/slurm-12.out"
    assert state_text(state) == "running on vn[1-2]"
    pending = parse_job(SCONTROL.format(state="PENDING", reason="Resources", code="0:0"))
    assert state_text(pending) == "pending (Resources): waits until enough is free"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("COMPLETED|0:0|n1", 0, None),
        ("FAILED|42:0|n1", 42, "exit status 42"),
        ("FAILED|0:9|n1", 137, "exit status 137"),
        ("TIMEOUT|0:0|n1", 1, "reached its time limit"),
        ("OUT_OF_MEMORY|0:125|n1", 253, "more host memory"),
        ("NODE_FAIL|1:0|n1", 1, "lost a node"),
        ("CANCELLED by 1000|0:15|n1", 143, "was cancelled"),
        ("PREEMPTED|0:15|n1", 143, "was preempted"),
    ],
)
def test_how_a_job_ended_is_the_exit_status_and_a_sentence(line: str, status: int, said: str | None) -> None:
    state = parse_sacct(line)
    finding = ended_finding("12", state)
    assert state.ended and exit_status_of(state) == status
    assert finding is None if said is None else finding is not None and said in finding.what


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("24:00:00", 86400), ("2-0", 172800), ("1-12:30", 131400), ("1-00:00:01", 86401)],
)
def test_time_limits_in_slurms_spellings(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "name"),
    [("src/My_Train.py", "my-train"), ("pkg.train", "pkg-train"), ("7b.py", "job-7b"), ("é.py", "job")],
)
def test_job_names_are_what_every_cluster_takes(text: str, name: str) -> None:
    assert job_name(text) == name


def test_directives_are_quoted_only_where_slurm_needs_it() -> None:
    assert directive_text("--gpus-per-node=4") == "--gpus-per-node=4"
    assert directive_text('--comment=a "b" \\') == '--comment="a \\"b\\" \\\\"'


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionNodeLimit", "not that many nodes"),
        ("AssocMaxGRESPerJob", "the account's limit of GPUs for one job is lower"),
        ("QOSMaxNodePerJobLimit", "the QOS's limit of nodes for one job is lower"),
        ("QOSMaxWallDurationPerJobLimit", "the QOS's limit of time for one job is lower"),
        ("QOSMaxMemoryPerNode", "the QOS's limit of memory for one node is lower"),
    ],
)
def test_what_no_waiting_cures(reason: str, why: str) -> None:
    said = never(reason)
    assert said is not None and why in said


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("AssocGrpGRES", "it starts when other jobs end"),
        ("QOSMaxJobsPerUserLimit", "it starts when other jobs end"),
        ("AssocGrpCPUMinutesLimit", "hours are used up"),
        ("ReqNodeNotAvail,_UnavailableNodes:vn[1-2]", "`sinfo -R`"),
        ("BeginTime", "two minutes"),
        ("Unheard", ""),
    ],
)
def test_what_a_job_waits_for(reason: str, why: str) -> None:
    assert why in waits_for(reason) and never(reason) is None
