"""What people paste into reports: a title above the log, sentences around it, several ranks at once, several runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks.fault_sets import logs
from tests.explain.logs import TORCH, diagnosed, explained, failed, raised

STEPS = "".join(f"epoch 1 step {step}/900 loss 2.{step}\n" for step in range(100, 106))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "and then PyCharm says: Process finished with exit code 137 (interrupted by signal 9: SIGKILL), why",
            "killed",
        ),
        ("Mon Jan  5 11:20:31: Exited with exit code 139. The CPU time used is 4.1 seconds;", "segmentation-fault"),
    ],
)
def test_an_exit_in_a_sentence(line: str, code: str) -> None:
    assert diagnosed(line + "\nMon Jan  5 11:20:31: Completed <exit>;\n").code == code


def test_an_abort_is_not_explained_by_what_nccl_tells_of_itself() -> None:
    told = "gpu3:41:97 [0] NCCL INFO comm 0x9f rank 0 nranks 2 cudaDev 0 busId 80 - Abort COMPLETE\n"
    found = diagnosed(STEPS + told + failed(-6, 0, 41))
    assert found.code == "aborted" and "NCCL" not in found.what


def test_a_rank_that_takes_itself_down_has_not_finished() -> None:
    told = "gpu3:41:97 [0] NCCL INFO comm 0x9f rank 0 nranks 2 cudaDev 0 busId 80 - Abort COMPLETE\n"
    down = "[rank0]:[E624 04:14:29.2 ProcessGroupNCCL.cpp:698] [Rank 0] To avoid data inconsistency, we are taking the "
    assert diagnosed(STEPS + told + down + "entire process down.\n").code == "unknown"


def test_many_steps_in_one_line_are_a_training_at_work() -> None:
    bars = ", ".join(f"Epoch 0:   3%|#  | {at}/20101 [2:1{at - 565}:19<76:15:08, loss=3.{at}" for at in range(565, 569))
    assert explained(bars + "\n").diagnosis is None


def test_a_rank_that_leaves_with_1_lost_another_one_as_the_lines_above_say() -> None:
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.42]:51212\n"
    found = diagnosed("    loss.backward()\n" + lost + failed(1, 1, 41))
    assert (found.code, found.rank) == ("unknown", 1) and "lost another rank" in found.what
    assert "lost another rank" not in diagnosed(lost + failed(9, 1, 41)).what, "no exception leaves 9"


def test_numbers_of_options_are_no_steps_and_waiting_is_no_end() -> None:
    raises = raised(None, "AttributeError: warmup")
    below = 'toolkit INFO Done waiting for a return code.\nCommand "torchrun t.py --epochs 3 --num-epochs 4"\n'
    assert diagnosed(raises + below + "toolkit ERROR exit_code 1\n").code == "script-exception"
    assert (
        explained("ERROR job: " + STEPS + raises + below + "toolkit INFO Reporting training SUCCESS\n").diagnosis
        is None
    )


@pytest.mark.parametrize("frame", ["<module>", "load"])
def test_a_warning_above_a_traceback_announces_it_where_it_was_caught(frame: str) -> None:
    text = raised(None, "RuntimeError: no table").replace("in main", f"in {frame}")
    found = explained("[WARNING] no hostfile, going on\n" + text + "Cleanup complete\n").diagnosis
    assert (found is not None) == (frame == "<module>")


def test_nccl_warns_of_nothing_that_it_survives() -> None:
    warned = (
        "node:57:58 [0] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\n"
    )
    assert diagnosed(warned + "Cleanup complete\n").code == "infiniband-error"


LATE = (
    "[rank{}]:[E512 16:44:09.018 ProcessGroupNCCL.cpp:563] [Rank {}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9363, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, Timeout(ms)=1800000) ran for 1800088 "
    "milliseconds before timing out.\n"
)
MISSING = raised(None, "ModuleNotFoundError: No module named 'seaborn'").replace("in main", "in <module>")
CUDNN = "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such\n"


def test_an_import_that_the_program_does_without() -> None:
    without = "[plots] seaborn is not installed, plain matplotlib is used instead\n"
    found = diagnosed(MISSING + without + CUDNN + failed(-6, 0, 31))
    assert found.code == "cudnn-error" and "libnvrtc.so" in found.what
    assert diagnosed(MISSING + "please pip install seaborn, it is used instead\n").code == "module-not-found"
    assert diagnosed(MISSING + CUDNN + failed(-6, 0, 31)).code == "module-not-found"


def test_what_aborts_after_the_last_word_was_through() -> None:
    aborts = "terminate called without an active exception\n" + failed(-6, 0, 31)
    assert diagnosed(STEPS + "[0] training finished\n" + aborts).code == "aborted-at-exit"
    assert diagnosed(STEPS + aborts).code == "aborted"


def test_an_exception_that_the_program_only_tells_of_is_not_what_ended_it() -> None:
    caught = "clip: OutOfMemoryError at batch size 256: CUDA out of memory. Tried to allocate 514.00 MiB.\n"
    own = raised(None, "ZeroDivisionError: division by zero")
    assert diagnosed(caught + own + failed(1, 0, 31)).what.startswith("ZeroDivisionError")
    assert diagnosed(caught + failed(1, 0, 31)).code == "cuda-out-of-memory"


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("[2023-12-03 22:10:55] 第 {} 轮 损失 9.21", "训练完成"),
        ("Epoche {}: Verlust 2.31", "fertig"),
        ("[learner] update {} return 12.4", "docker: Exited (0) 3 hours ago"),
        ("epoch {} loss 2.31", "resources used: walltime=06:20:47, exit_status=0"),
    ],
)
def test_steps_and_ends_in_other_words(step: str, end: str) -> None:
    steps = [step.format(number) + "\n" for number in range(4)]
    text = "".join(steps[:2]) + raised(None, "EOFError: pipe").replace("in main", "in read") + "".join(steps[2:])
    assert explained(f"{text}{end}\n").diagnosis is None


def test_bars_in_the_table_of_a_training_are_steps() -> None:
    oom = "auto-batch: RuntimeError: CUDA out of memory. Tried to allocate 392.00 MiB\nauto-batch: 32 fits\n"
    row = "      {}/2      9.81G    0.088        412        640: 100%|██████████| 48/48 [00:31<00:00,  1.50it/s]\n"
    assert explained(oom + "".join(map(row.format, range(4))) + "2 epochs completed\n").diagnosis is None


def test_several_ranks_that_fetch_one_package() -> None:
    fetch = "[nltk_data] Downloading package punkt to /home/kim/nltk_data...\n"
    bad = raised(None, "zipfile.BadZipFile: File is not a zip file")
    assert diagnosed(fetch * 2 + bad).code == "dataset-race"
    assert diagnosed(fetch + bad).code != "dataset-race"


def test_examples_in_quotes_are_no_failures() -> None:
    quoted = 'example 1: "kernel: Out of memory: Killed process 4410 (java)" -> oom (0.98)\n'
    more = 'example 2: "slurmd: error: Node failure" -> node (0.88)\n'
    assert explained(STEPS + quoted + more + "predictions written to out.csv\n").diagnosis is None
    assert diagnosed(STEPS + "kernel: Out of memory: Killed process 4410 (java)\n").code == "host-out-of-memory"


def test_warnings_of_libraries_are_no_last_words() -> None:
    warned = (
        "[rank0]:[W925 08:10:41.411 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed "
        "before we destruct ProcessGroupNCCL, so that any pending NCCL operations have finished in this process.\n"
    )
    lost = (
        "[rank1]:[W925 08:10:41.500 TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=54, "
        "addr=[localhost]:41288, remote=[localhost]:43911): failed to recv, got 0 bytes\n"
    )
    assert explained(STEPS + "checkpoint saved\n" + warned + lost).diagnosis is None


def test_a_file_that_is_still_written_vanished_under_another_rank() -> None:
    renamed = "FileNotFoundError: [Errno 2] No such file or directory: '/data/faces.extracting' -> '/data/faces'"
    assert diagnosed(raised(None, renamed)).code == "dataset-race"
    assert diagnosed(raised(None, renamed.replace(".extracting", ".bin"))).code == "dataset-missing"


def test_a_watcher_that_ends_what_stalls() -> None:
    watched = "logwatch: no output since 01:12:21Z (2409 s), job considered stalled\n"
    ended = "[INFO] [launch.py:333:sigkill_handler] Main process received SIGTERM, exiting\n"
    assert diagnosed(STEPS + watched + ended).code == "hang"
    assert diagnosed(STEPS + ended).code == "terminated"


def test_a_table_of_steps_shows_that_a_pod_was_scheduled_after_all() -> None:
    events = "  Warning  FailedScheduling  42m  default-scheduler  0/18 nodes are available: 12 Insufficient cpu\n"
    steps = "".join(f"Training  [{step:4}/125000]  eta: 1 day  total_loss: 12.9\n" for step in range(0, 2500, 500))
    assert explained(events + steps).diagnosis is None
    assert diagnosed(events).code == "scheduler-error"


def test_an_exception_of_a_destructor_without_its_traceback_is_ignored() -> None:
    ignored = "Exception ignored in: <function tqdm.__del__ at 0x7f2b>\nAttributeError: 'tqdm' has no attribute 'pos'\n"
    assert explained(STEPS + "Training time 1:36:58\n" + ignored).diagnosis is None
    assert diagnosed(STEPS + ignored.partition("\n")[2]).code == "script-exception"


def test_processes_of_jax_that_did_not_all_connect() -> None:
    error = (
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. "
        "Timed out task names:\n/job:jax_worker/replica:0/task:2\n"
    )
    found = diagnosed(raised(None, error) + "[nomad] group trainer: restart policy mode=fail, attempts 0\n")
    assert found.code == "rendezvous-failed" and "JAX" in found.what


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("voc.guard.NonFiniteLoss: gen_loss=nan at step 84210: 5 non-finite steps in a row", "not-a-number"),
        ("mxnet.base.MXNetError: src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory",
         "cuda-out-of-memory"),
    ],
)  # fmt: skip
def test_exceptions_of_other_libraries(error: str, code: str) -> None:
    assert diagnosed(raised(None, error)).code == code


def test_ranks_in_short_brackets_are_ranks() -> None:
    lines = "".join(f"[r1] {line}\n" for line in raised(None, "KeyError: 'x'").splitlines())
    found = diagnosed("[r0] epoch 1 loss 0.3\n" + lines)
    assert (found.code, found.rank) == ("script-exception", 1)


def test_what_a_service_says_after_the_exception_of_the_rank_that_failed() -> None:
    own = raised(0, "IndexError: list index out of range").replace("in main", "in <module>")
    said = "COMET ERROR: Failed to log 'run.log': HTTPSConnectionPool(host='www.comet.com', port=443): Max retries\n"
    assert diagnosed(own + said + failed(1, 0, 31)).what.startswith("IndexError")


def test_the_banner_at_the_end_of_a_run_begins_none() -> None:
    text = "### run.sh start 2023-05-02 19:40 ###\nnohup: ignoring input\n" + MISSING
    assert (
        diagnosed(text + failed(1, 0, 31) + "### run.sh end status 1 2023-05-03 04:12 ###\n").code == "module-not-found"
    )


def test_a_container_that_needs_a_newer_driver() -> None:
    needs = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver\n"
    assert diagnosed(needs + "Error: failed to start containers: C.1\n").code == "driver-too-old"


def test_a_retry_count_that_was_exceeded_is_no_retry() -> None:
    ucx = "[n1:22071:0:22104] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15 vend 0x81)\n"
    below = "".join(f"{at}  libucs.so.0(ucs_fatal_error_message+0x{at}) [0x14b3]\n" for at in range(4))
    aborted = "mpirun noticed that process rank 5 with PID 22071 on node n1 exited on signal 6 (Aborted).\n"
    assert diagnosed(STEPS + ucx + below + aborted).code == "infiniband-error"


def test_a_warning_that_the_switches_are_not_ready_is_why_there_is_no_gpu() -> None:
    warned = (
        "/opt/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected error from "
        "cudaGetDeviceCount(). Error 802: system not yet initialized\n"
    )
    none = raised(None, "lightning.exceptions.MisconfigurationException: No supported gpu backend found!")
    assert diagnosed(warned + none + failed(1, 0, 31)).code == "fabric-manager-down"


def test_steps_behind_the_stamps_of_glog_show_that_a_restart_came_through() -> None:
    error = raised(11, "RuntimeError: CUDA error: uncorrectable ECC error encountered") + failed(1, 3, 31)
    steps = "".join(f"I0714 11:40:1{at} g01 rank 0 | step {at}000 loss 0.27\n" for at in range(4, 8))
    assert explained(error + "I0714 05:22:02 g01 rank 0 | resumed step_3000\n" + steps).diagnosis is None


def test_columns_of_compose_name_services_without_numbers() -> None:
    oom = "ERROR 08-28 15:50:31 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
    lines = ["trainer  | loss 0.3\n"] * 4 + [f"vllm     | {oom}"]
    lost = raised(0, "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('closed'))")
    lines += [f"trainer  | {line}\n" for line in lost.splitlines()]
    assert diagnosed("".join(lines)).code == "cuda-out-of-memory"


def test_a_group_of_zarr_that_is_not_there() -> None:
    missing = raised(None, "zarr.errors.GroupNotFoundError: group not found at path '/p/scratch/era5/2019.zarr'")
    assert diagnosed(missing).code == "dataset-missing"


@pytest.mark.parametrize(
    "logged",
    [
        "ERROR | rank 6 | prefetch thread stopped: ValueError('empty labels for sample 118204')",
        "ERROR rank 6 worker 2: soundfile.LibsndfileError: Error opening 'a.wav': Format not recognised.",
        "[rank6]: loader thread stopped: AttributeError: no attribute 'PixelSpacing'",
    ],
)
def test_an_exception_that_a_thread_logged_is_why_the_others_wait(logged: str) -> None:
    waits = "".join(LATE.format(rank, rank) for rank in range(3))
    found = diagnosed(f"{STEPS}{logged}\nepoch 1 step 106/900 loss 2.1\n{waits}{failed(-6, 0, 31)}")
    assert (found.code, found.rank) == ("script-exception", 6)
    own = raised(1, "KeyError: 'x'").replace("in main", "in <module>")
    assert diagnosed(f"{STEPS}{logged}\n{own}{failed(1, 1, 31)}").rank == 1


def test_ctrl_c_ends_what_only_shows_a_log() -> None:
    assert (
        explained("(rlhf) kim@n9:~/trl$ tail -n 40 -f dpo.log\n" + STEPS + "Training finished\n^C\n").diagnosis is None
    )
    assert diagnosed("$ torchrun train.py\n" + STEPS + "^C\n").code == "terminated"


def test_sizes_that_differ_where_one_rank_names_its_group() -> None:
    late = LATE.format(1, 1) + LATE.format(0, 0).replace("NumelIn=6,", "NumelIn=7,")
    group = "[rank0]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 9363, last enqueued: 9363\n"
    assert diagnosed(late + group).code == "collective-mismatch"


def test_a_prompt_without_a_host_begins_a_launch() -> None:
    launch = "~/vent$ torchrun --nproc_per_node=2 fit.py\n"
    first = launch + MISSING + failed(1, 0, 31) + "fit.py FAILED\n~/vent$ pip install -q seaborn\n"
    assert explained(first + launch + STEPS + "done in 14 min\n~/vent$ echo $?\n0\n").diagnosis is None


def test_gitlabs_last_word_is_of_all_of_the_job() -> None:
    tests = raised(None, "ValueError: deliberate") + failed(1, 1, 31) + "workers.py FAILED\n== 5 passed in 61.17s ==\n"
    assert explained(tests + "Cleaning up project directory\n00:01\nJob succeeded\n").diagnosis is None


def test_exceptions_of_ranks_that_end_because_slurm_took_the_job_back() -> None:
    step = "slurmstepd: error: *** STEP 18.0 ON g3 CANCELLED AT 2022-11-12T09:22:41 DUE TO PREEMPTION ***\n"
    late = raised(None, "KeyError: 'x'")
    exits = "srun: error: g4: task 1: Exited with exit code 1\nsrun: error: g3: task 0: Terminated\n"
    assert diagnosed(STEPS + step + late + exits).code == "terminated"
    assert diagnosed(STEPS + late + exits + step).code == "script-exception"


def test_what_multiprocessing_prints_of_its_finalizers_ends_nothing() -> None:
    finalizers = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.8/multiprocessing/util.py", line 300, in '
        "_run_finalizers\n    finalizer()\nOSError: [Errno 39] Directory not empty: 'pymp-a3z0c1'\n"
    )
    assert explained(STEPS + finalizers).diagnosis is None
    assert diagnosed(raised(0, "KeyError: 'x'") + finalizers + failed(1, 0, 31)).code == "script-exception"


def test_a_library_that_says_what_it_does_without() -> None:
    without = "A matching Triton is not available, some optimizations will not be enabled\n" + raised(
        None, "ModuleNotFoundError: No module named 'triton'", "/opt/lib/python3.11/site-packages/xformers/__init__.py"
    )
    assert diagnosed(without + STEPS + raised(1, "KeyError: 'x'") + failed(1, 1, 31)).code == "script-exception"


def test_lightning_stops_at_a_metric_that_is_not_finite() -> None:
    stopped = "Monitored metric val_loss = nan is not finite. Previous best value was 0.7. Signaling Trainer to stop.\n"
    found = diagnosed(STEPS + stopped + "epoch 5 step 582: 'val_loss' was not in top 3\nrun_tts.sh: exit 1\n")
    assert found.code == "not-a-number" and "val_loss = nan" in found.what


def test_ninja_that_finds_no_compiler() -> None:
    ninja = (
        "FAILED: a.cuda.o\n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nninja: build stopped: subcommand failed.\n"
    )
    found = diagnosed(ninja + raised(0, "RuntimeError: Error building extension 'attn'"))
    assert found.code == "extension-build-failed" and "there is no `/usr/local/cuda/bin/nvcc`" in found.what


def test_ray_tune_only_counts_the_trials_that_failed() -> None:
    trial = (
        'ERROR -- Trial task failed for trial a\nTraceback (most recent call last):\n  File "/opt/lib/python3.11/'
        'site-packages/ray/air/event_manager.py", line 110, in resolve_future\n    result = ray.get(future)\n'
        "ray.exceptions.RayTaskError(ValueError): ray::PPO.train() (pid=3311, ip=10.244.3.18)\n"
        '  File "/opt/lib/python3.11/site-packages/ray/tune/trainable.py", line 330, in train\n'
        "    raise skipped from exception_cause(skipped)\n"
        '  File "/home/kim/env.py", line 118, in _check\n    raise ValueError("outside")\nValueError: outside\n'
    )
    found = diagnosed(trial + "ray.tune.error.TuneError: ('Trials did not complete', [a])\n")
    assert found.exception is not None and found.exception.frame == "env.py:118 in _check"


def test_a_rank_in_brackets_without_a_colon() -> None:
    own = raised(None, "KeyError: 'speaker_id'").replace("\n", "\n[rank2] ")[: -len("[rank2] ")]
    steps = "".join(f"[rank0]   {step}/900  loss 2.{step}\n" for step in range(100, 106))
    found = diagnosed(steps + "[rank2] " + own)
    assert (found.code, found.rank, found.host) == ("script-exception", 2, None)
    again = raised(0, "KeyError: 'warmup'") + failed(1, 0, 31) + "##### run.sh exit status 1 #####\n"
    assert explained(again + "##### run.sh again #####\n" + steps + "[rank0] stage: finished\n").diagnosis is None


def test_what_has_run_the_launcher_names_no_other_rank() -> None:
    bus = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    )
    text = "".join(f"trainer_1  | {line}\n" for line in (STEPS + bus + failed(1, 2, 61)).splitlines())
    found = diagnosed(text + "trainer_1 exited with code 1\n")
    assert (found.code, found.rank) == ("shm-too-small", 2)


def test_a_run_below_a_banner_with_a_date_or_below_an_excerpt_of_an_older_one() -> None:
    old = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 978.00 MiB\n"
    own = raised(None, "UnicodeDecodeError: 'ascii' codec can't decode byte 0xc5") + failed(1, 0, 31)
    banner = "==== Tue Jun 4 15:{}2:44 2024 {} ====\n"
    runs = (
        banner.format(0, "start") + old + banner.format(1, "stop, status 1") + banner.format(3, "start") + STEPS + own
    )
    assert diagnosed(runs).code == "script-exception"
    assert diagnosed("--- last words of train.log.old ---\n" + old + STEPS + own).code == "script-exception"
    assert diagnosed("--- last words of train.log.old ---\n" + old + own).code == "cuda-out-of-memory"


def test_a_prompt_with_a_space_before_its_sign() -> None:
    first = "~/nerf $ torchrun run.py\n" + STEPS + "^C\nKeyboardInterrupt\n~/nerf $ vim run.py\n"
    assert diagnosed(first + "~/nerf $ torchrun run.py --rays 9\n" + raised(None, "KeyError: 'x'")).code != "terminated"


def test_transcripts_are_none_of_the_program_s_own_words() -> None:
    text = "  HYP: no space left on device one\n  REF: no space left on the vise one\nTotal errors: 1840\n"
    assert explained(STEPS + text + "finished\n").diagnosis is None


def test_ranks_in_brackets_behind_times_and_columns() -> None:
    banner = "".join(f"node-{host}| W0411 08:00:01.118000 701 run.py:792] OMP_NUM_THREADS is 1\n" for host in "ab")
    own = "".join(f"node-b| [9] {line}\n" for line in raised(None, "KeyError: 'x'").splitlines())
    found = diagnosed(banner + "".join(f"node-a| [0] step {at} loss 0.4\n" for at in range(1, 5)) + own)
    assert (found.code, found.rank, found.host) == ("script-exception", 9, "node-b")


def test_pods_of_others_in_a_list_of_events() -> None:
    pod = "dlrm-{} train 2024-11-02T22:15:4{} "
    lines = [pod.format(0, at) + f"[rank0] iter 6100{at} auc 0.79\n" for at in range(4)]
    lines += [pod.format(1, 5) + "SignalException: Process 1 got signal: 15\n"]
    other = "22m  Warning  FailedScheduling  pod/etl-7f  0/31 nodes are available: 31 Insufficient nvidia.com/gpu.\n"
    found = diagnosed("".join(lines) + "$ kubectl get events\n" + other)
    assert (found.code, found.host) == ("terminated", "dlrm-1")
    assert diagnosed(other).code == "scheduler-error"


def test_what_kubectl_says_of_a_container_as_json() -> None:
    state = '{"terminated":{"exitCode":1,"finishedAt":"2025-04-22T05:43:14Z","reason":"OOMKilled"}}\n'
    assert diagnosed(STEPS + failed(-9, 4, 45) + "$ kubectl get pod worker-3 -o jsonpath\n" + state).code == (
        "host-out-of-memory"
    )


def test_versions_that_deepspeed_accepts() -> None:
    accepts = (
        "Installed CUDA version 12.4 does not match the version torch was compiled with 12.1 but since the APIs are "
    )
    assert diagnosed(accepts + "compatible, accepting this combination\n" + STEPS + failed(-9, 1, 31)).code == "killed"


def test_a_scheduler_s_word_for_all_of_the_job_stands_above_what_its_epilog_says() -> None:
    epilog = "State: COMPLETED (exit code 0)\nNodes: 1\nrmdir: failed to remove '/tmp/40771': Directory not empty\n"
    assert explained(STEPS + "0: finished; best dice 0.801\n" + epilog).diagnosis is None


def test_a_program_that_says_how_long_it_took_was_through() -> None:
    aborted = "terminate called without an active exception\n" + failed(-6, 1, 20)
    assert diagnosed(STEPS + "[0] done in 412 s\n[1] done in 412 s\n" + aborted).code == "aborted-at-exit"


def test_a_supervisor_that_sees_no_new_line() -> None:
    watch = "supervise.sh: no new line in train.log for 45 min, giving up\nsupervise.sh: kill -TERM 9120\n"
    ended = "run.sh: line 30:  9131 Terminated              torchrun --nnodes=2 pretrain.py\n"
    assert (
        diagnosed(STEPS + watch + ended + "supervise.sh: exit status 143, no progress since step 3450\n").code == "hang"
    )


def test_hosts_in_brackets() -> None:
    own = raised(
        None, "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 clients joined."
    )
    text = "".join(f"[ken01] {line}\n" for line in ("rank=0 world=4", *own.splitlines()))
    found = diagnosed("[start] ken04: ssh timed out, going on\n" + text + "[ken02] Connection reset by peer\n")
    assert (found.code, found.host) == ("rendezvous-failed", "ken01")


def test_records_that_a_supervisor_writes() -> None:
    step = '{{"svc":"trn","rank":0,"msg":"step","n":{},"loss":2.6}}\n'
    crash = '{"svc":"trn","rank":2,"msg":"crash","exc":"RuntimeError: CUDA error: unspecified launch failure"}\n'
    again = '{"svc":"sup","text":"job attempt 1 FAILED"}\n{"svc":"trn","rank":0,"msg":"resumed"}\n'
    ends = '{"svc":"trn","rank":0,"msg":"finished"}\n{"svc":"sup","msg":"job complete"}\n'
    assert explained(step.format(1) + crash + again + step.format(2) + step.format(3) + ends).diagnosis is None
    assert diagnosed(step.format(1) + crash + '{"svc":"sup","text":"job attempt 1 FAILED"}\n').code == "gpu-fault"


@pytest.mark.parametrize(
    "sample",
    [
        "task 118: rc=-11 Segmentation fault",
    ],
)
def test_samples_and_results_of_what_was_tried(sample: str) -> None:
    assert explained(f"{STEPS}{sample}\npassed 312, failed 188, killed 6\nsaved to out\n").diagnosis is None


def test_what_platforms_say_of_memory_and_readers_of_parquet() -> None:
    vertex = "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137(SIGKILL).\n"
    assert diagnosed(STEPS + vertex + "Job failed.\n").code == "host-out-of-memory"
    parquet = "OSError: Could not open Parquet input source 'a': Couldn't deserialize thrift: Invalid data"
    assert diagnosed(raised(6, parquet)).code == "data-corrupt"


def test_a_service_that_failed_is_not_caught_by_what_asked_it() -> None:
    vllm = (
        'ERROR [core.py:515] Traceback (most recent call last):\nERROR [core.py:515]   File "/opt/lib/python3.11/'
        'site-packages/vllm/v1/engine/core.py", line 506, in run_engine_core\nERROR [core.py:515]     loop()\n'
        "ERROR [core.py:515] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.\n"
    ).replace("[core.py", "06-24 10:09:41 [core.py")
    asked = "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed'))"
    asked = raised(0, asked).replace("in main", "in <module>")
    lines = [f"trainer  | loss 0.{at}" for at in range(4)] + [f"vllm-1   | {line}" for line in vllm.splitlines()]
    lines += [f"trainer  | {line}" for line in (asked + failed(1, 0, 41)).splitlines()]
    assert diagnosed("\n".join(lines) + "\nvllm-1 exited with code 1\n").code == "cuda-out-of-memory"


def test_files_and_keys_that_readers_of_data_miss() -> None:
    arrow = "FileNotFoundError: [Errno 2] Failed to open local file '/data/a.parquet'. Detail: [errno 2] No such file"
    assert diagnosed(raised(12, arrow)).code == "dataset-missing"
    key = "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation: none"
    assert diagnosed(raised(3, key)).code == "dataset-missing"


def test_ranks_wait_for_one_that_finds_no_address() -> None:
    waits = raised(
        None, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/3 clients joined."
    )
    name = (
        "[W socket.cpp:697] [c10d] The IPv4 network addresses of (bert-0, 23456) cannot be retrieved (gai error: -2 -"
    )
    assert diagnosed(f"{waits}{name} Name or service not known).\n").code == "host-name-unresolvable"


def test_what_copies_many_files_lists_why_each_failed() -> None:
    copied = "shutil.Error: [('/a/optim.pt', '/b/optim.pt', \"[Errno 28] No space left on device: '/b/optim.pt'\")]"
    assert diagnosed(raised(8, copied)).code == "disk-full"


def test_horovod_only_says_that_another_rank_is_gone() -> None:
    warned = (
        "cn0431:40117:40290 [3] transport/net_ib.cc:1348 NCCL WARN NET/IB : Got completion from peer 172.16.4.30<58311>"
    )
    warned += " with status=12 opcode=0 len=32620 vendor err 129 (Send)\n"
    lost = (
        "horovod.common.exceptions.HorovodInternalError: ncclAllReduce failed: remote process exited or network error"
    )
    assert diagnosed(STEPS + warned + raised(None, lost) + failed(1, 0, 31)).code == "infiniband-error"


def test_an_abort_after_lightning_has_stopped_at_its_last_epoch() -> None:
    stopped = "`Trainer.fit` stopped: `max_epochs=30` reached.\nexported model.onnx\n"
    aborts = "pure virtual method called\nterminate called without an active exception\n"
    shell = "./fold.sh: line 22: 30155 Aborted                 (core dumped) python fit.py\n"
    assert diagnosed(STEPS + stopped + aborts + shell).code == "aborted-at-exit"
    assert diagnosed(STEPS + aborts + shell).code == "aborted"


def test_a_driver_that_is_too_old_is_why_there_is_no_bf16() -> None:
    warned = (
        "/opt/torch/cuda/__init__.py:141: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old"
    )
    without = raised(None, "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.")
    assert diagnosed(warned + " (found version 11040).\n" + without + failed(1, 0, 33)).code == "driver-too-old"


def test_ctrl_c_behind_a_bar_of_a_later_epoch() -> None:
    bar = "Epoch 1: 100%|##########| 210/210 [03:58<00:00]\nEpoch 2:  37%|###7      | 78/210 [01:29<02:31]^C\n"
    graceful = "/opt/pl/distributed.py:49: UserWarning: Detected KeyboardInterrupt, attempting graceful shutdown...\n"
    assert diagnosed(bar + graceful + "Saving latest checkpoint...\n").code == "terminated"


def test_what_spawn_raises_again_is_observed() -> None:
    log = next(each.log for each in logs("twenty_ninth") if each.name.endswith("/detectron_coco_annotations_gone"))
    assert "Exception: \n" in log and diagnosed(log).certainty == "observed"


def test_what_programs_say_in_other_languages() -> None:
    without = raised(None, "ModuleNotFoundError: No module named 'flash_attn'", "/root/llm/attn.py")
    text = "[进程0] 未安装 flash_attn, 改用 sdpa\n" + without + "[进程0] 继续使用自带的实现\n"
    text += "".join(f"[进程0] 第 {step} 步 损失 3.4\n" for step in (100, 200, 300))
    assert diagnosed(text + "".join(LATE.format(rank, rank) for rank in range(3))).code == "collective-timeout"
    lost = "[rank2]:[W418 TCPStore.cpp:122] [c10d] recvValue failed on SocketImpl(fd=43): failed to recv, got 0 bytes\n"
    polish = "[0] epoka 19/20 strata 0.211\n[0] epoka 20/20 strata 0.209\n[0] zapisano wagi\n[0] trening zakończony\n"
    assert explained(polish + lost + "[koniec] kod wyjścia 0\n").diagnosis is None


def test_a_suite_of_faults_that_saw_what_it_expected() -> None:
    full = (
        "chaos> scenario 2/3: fill the disk\nOSError: [Errno 28] No space left on device\nchaos> expected error seen\n"
    )
    assert explained(STEPS + full + "chaos> 3 scenarios, 3 OK, 0 unexpected\n##[endgroup]\n").diagnosis is None


def test_a_traceback_that_nobody_signed_above_steps_has_ended_nothing() -> None:
    plots = raised(None, "FileNotFoundError: [Errno 2] No such file or directory: 'plots/load.png'")
    cause = "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    found = diagnosed(
        plots + "plots off\n" + STEPS + raised(1, cause + "CollectiveFingerPrint(OpType=A)") + failed(1, 1, 3302)
    )
    assert (found.code, found.rank) == ("collective-mismatch", 1)


def test_a_log_that_is_shown_after_the_connection_was_lost() -> None:
    shown = "kim@h6:~$ tail -f ocr.log\n" + STEPS + "Connection to h6 closed.\n$ ssh h6 tail -17 ocr.log\n"
    hangup = "W1009 18:18:52.731000 71330 api.py:719] Received 1 death signal, shutting down workers\n"
    assert diagnosed(shown + hangup).code == "terminated"


def test_a_watchdog_that_sees_a_stall() -> None:
    watch = "WATCHDOG 03:41:40 stalled for 30 min, all 8 processes alive\nWATCHDOG sending SIGKILL to group 7700\n"
    killed = "run.sh: line 40:  7700 Killed                  python launch.py\nrun.sh: exit 137\n"
    assert diagnosed(STEPS + watch + killed).code == "hang"


def test_a_loss_that_an_assertion_found_not_finite() -> None:
    frames = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/opt/mmdet/checkloss_hook.py", line 41, in f\n'
    )
    text = "loss become infinite or NaN!\n" + frames + "[rank0]:     assert torch.isfinite(outputs['loss']), \\\n"
    assert diagnosed(STEPS + text + "[rank0]: AssertionError: None\n" + failed(1, 0, 203)).code == "not-a-number"


def test_a_video_that_ffmpeg_cannot_read() -> None:
    video = "av.error.InvalidDataError: [Errno 1094995529] Invalid data found when processing input: '/data/212.mp4'"
    assert diagnosed(STEPS + raised(None, video)).code == "data-corrupt"


@pytest.mark.parametrize(
    "show",
    [
        lambda at, text: f"{'INFO' if at < 9 else 'ERROR'}\t2026-01-05T04:11:{at:02}.123Z\tworkerpool0-0\t{text}",
        lambda at, text: f"2026-01-05 04:11:{at:02} {'INFO' if at < 9 else 'ERROR'} trainer: {text}",
        lambda at, text: f'time="2026-01-05T04:11:{at:02}Z" level={"info" if at < 9 else "error"} msg={text}',
        lambda at, text: f"[{'STDOUT' if at < 9 else 'STDERR'}] {text}",
        lambda at, text: f'2026-01-05T04:11:{at:02}Z\t{{"app":"train","pod":"trainer-1"}}\t{text}',
        lambda at, text: f"trainer-1 {json.dumps({'level': 'info', 'message': text})}",
        lambda at, text: f"2026-01-05 04:11:{at:02}.000 +0000 kube.train: {json.dumps({'log': text + chr(10)})}",
        lambda at, text: f'{{ "ts": 1.{at}, "msg": {json.dumps(text)} }}',
        lambda at, text: json.dumps({"kubernetes": {"pod": "a"}, "log": {"message": text}, "level": "info"}),
    ],
)
def test_what_a_collector_puts_before_each_line_may_differ_in_its_words(show: Callable[[int, str], str]) -> None:
    lines = (STEPS + raised(None, "KeyError: 'title'")).splitlines()
    found = diagnosed("".join(f"{show(at, line)}\n" for at, line in enumerate(lines)))
    assert found.what == "KeyError: 'title' at train.py:31 in main"


@pytest.mark.parametrize("file", ["agent/server/api.py:836", "multiprocessing/errors/error_handler.py:141"])
def test_a_traceback_that_torch_elastic_logs(file: str) -> None:
    front = f"E1128 10:00:00.123000 18472 torch/distributed/elastic/{file}] "
    told = "".join(front + line + "\n" for line in raised(None, "KeyError: 'title'").splitlines())
    assert diagnosed(STEPS * 9 + told).what == "KeyError: 'title' at train.py:31 in main"


def test_an_abort_of_nccl_does_not_hide_the_time_out_before_it() -> None:
    found = diagnosed(f"{STEPS}Timeout waiting for NCCL all-reduce (600 s)\nNCCL communicator was aborted on rank 2.\n")
    assert (found.code, found.what) == ("collective-timeout", "all-reduce timed out")


def test_a_worker_of_a_data_loader_that_a_signal_ended() -> None:
    found = diagnosed(raised(0, "RuntimeError: DataLoader worker (pid 4142) is killed by signal: Terminated. "))
    assert "a signal ended a process of rank 0's DataLoader (Terminated)" in found.why


@pytest.mark.parametrize("host", ["[fd00::1]", "node0:29500", "tcp://10.0.0.1"])
def test_an_address_that_says_more_than_the_host_is_not_for_etc_hosts(host: str) -> None:
    line = f"[c10d] The IPv4 network addresses of ({host}, 29500) cannot be retrieved (gai error: -2 - Name unknown).\n"
    found = diagnosed(line)
    assert f"`{host}` was looked up as a name" in found.what and "/etc/hosts" not in " ".join(found.fixes)


def test_torchrun_that_did_not_use_the_master_address_is_led_to_the_endpoint() -> None:
    waits = "[c10d] The client socket has timed out after 60000ms while trying to connect to (localhost, 29400).\n"
    warning = (
        "W0105 torch/distributed/run.py:1] master_addr is only used for static rdzv_backend and when rdzv_endpoint "
    )
    found = diagnosed(f"{warning}is not specified.\n{waits}")
    assert found.code == "rendezvous-failed" and "--rdzv-endpoint" in found.fixes[0]
    assert "--rdzv-endpoint" not in " ".join(diagnosed(waits).fixes)


def test_a_rank_in_backward_while_another_is_in_a_barrier_had_more_batches() -> None:
    waits = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation"
    text = "".join(
        raised(rank, waits).replace("train.py", own).replace(f"[rank{rank}]: Runtime", f"{frame}[rank{rank}]: Runtime")
        for rank, own, frame in (
            (0, "end.py", f'[rank0]:   File "{TORCH}/distributed/distributed_c10d.py", line 4551, in barrier\n'),
            (1, "train.py", f'[rank1]:   File "{TORCH}/autograd/graph.py", line 768, in _engine_run_backward\n'),
        )
    )
    found = diagnosed(text)
    assert found.code == "collective-mismatch" and "one rank had more batches" in found.why
    assert "drop_last=True" in found.fixes[0] and "Join" in found.fixes[0]
