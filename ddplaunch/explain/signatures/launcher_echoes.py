"""What launchers and schedulers print about an end that they did not cause."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier


def _echo(code: str, what: str, patterns: tuple[str, ...], examples: tuple[str, ...], near: str) -> Signature:
    """A cascade signature: it says what followed and offers no fix."""
    return Signature(
        code=code,
        tier=Tier.ECHO,
        patterns=patterns,
        what=what,
        examples=examples,
        near_misses=(near,),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py",
    )


SIGNATURES: tuple[Signature, ...] = (
    _echo(
        "stopped-by-launcher",
        "the launcher stopped the remaining ranks",
        (
            r"Sending process \d+ closing signal SIGTERM",
            r"Unable to shutdown process \d+ via \S+, forcefully exiting via",
            r"Killing subprocess \d+",
        ),
        (
            "W0309 12:30:02 5010 api.py:908] Sending process 5041 closing signal SIGTERM",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Unable to shutdown process 4131 via 15, forcefully "
            "exiting via 9",
            "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 61377",
        ),
        "Sending process 20877 closing signal SIGHUP",
    ),
    _echo(
        "launcher-summary",
        "the launcher's own summary of the failure",
        (
            r"multiprocessing\.errors\.ChildFailedError",
            r"Root Cause \(first observed failure\):",
            r"CalledProcessError: Command .*(?:python|torchrun|accelerate|deepspeed|local[_-]rank).* "
            r"returned non-zero exit status \d+",
            r"exits with return code = [1-9]\d*",
            r"CHILD PROCESS FAILED WITH NO ERROR_FILE",
            r"Local worker group finished \(FAILED\)",
            r"returned a non-zero exit code",
            r"exited with non-zero (?:status|exit code)",
        ),
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "Root Cause (first observed failure):",
            "subprocess.CalledProcessError: Command '['python', '-u', 'train.py']' returned non-zero exit status 1.",
            "[ERROR] [launch.py:325:sigkill_handler] ['python', 'sft.py', '--local_rank=1'] exits with return code = 1",
            "**   CHILD PROCESS FAILED WITH NO ERROR_FILE                **",
            "INFO:torch.distributed.elastic.agent.server.api:Local worker group finished (FAILED). Waiting 300 seconds",
            "Primary job  terminated normally, but 1 process returned a non-zero exit code.",
            "mpirun detected that one or more processes exited with non-zero status",
        ),
        "['python', 'a.py'] exits with return code = -9",
    ),
    _echo(
        "told-elsewhere",
        "what started the work says that it failed, and not why",
        (
            r"[Ss]ee (?:root cause above|stack ?trace for root cause)|inspect the previous error messages for a cause",
            r"ExecuteUserScriptError:|Failed - Training job failed|UnexpectedStatusException: Error for Training job",
            r"Number of errored trials: [1-9]|The [Kk]ernel (?:crashed while executing code|appears to have died)",
            r"\bPod: \S+ exited with code [1-9]|\bError executing job with overrides: ",
            r"^Finished: (?:FAILURE|ABORTED)$|^Workflow failed\.$",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace "
            "for root cause.",
            "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error "
            "messages for a cause.",
            "sagemaker-training-toolkit ERROR    ExecuteUserScriptError:",
            "2024-10-27 17:42:20 Failed - Training job failed",
            "sagemaker.exceptions.UnexpectedStatusException: Error for Training job mnist-1: Failed. Reason: x",
            "Number of errored trials: 1",
            "The Kernel crashed while executing code in the current cell or a previous cell.",
            "The kernel appears to have died. It will restart automatically.",
            'time="2024-02-21T09:32:29Z" level=info msg="Pod: kubeflow.simple-worker-0 exited with code 1" job=a',
            "Error executing job with overrides: ['dataset.num_workers=12']",
            "Finished: FAILURE",
        ),
        "Number of errored trials: 0",
    ),
    _echo(
        "step-ended",
        "the scheduler or the remote shell ended the rest of the step",
        (
            r"srun: error: \S+: tasks? [\d,\-\[\]]+: (?:Exited with exit code \d+|Terminated)",
            r"srun: Terminating (?:StepId|job step)",
            r"srun: (?:error: )?Job step aborted",
            r"srun: forcing job termination",
            r"srun: got SIG\w+",
            r"ssh exited with exit code \d+",
        ),
        (
            "srun: error: nid004411: task 1: Exited with exit code 1",
            "srun: error: nid004411: tasks 0,2-3: Terminated",
            "srun: Terminating StepId=30211877.0",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "srun: forcing job termination",
            "srun: got SIGCONT",
            "pdsh@GPUD2A: GPUD2C: ssh exited with exit code 1",
        ),
        "srun: error: gpu-x04: task 1: Out Of Memory",
    ),
    _echo(
        "rendezvous-shutdown",
        "a node could not take leave of the rendezvous because the other side was gone",
        (
            r"has failed to shutdown the rendezvous '[^']*' due to an error of type \w+",
            r"has failed to send a keep-alive heartbeat to the rendezvous",
        ),
        (
            "W0309 dynamic_rendezvous.py:1341] The node 'gpu-b_88190_0' has failed to shutdown the rendezvous 'r77' "
            "due to an error of type RendezvousConnectionError.",
            "The node 'a_1_0' has failed to send a keep-alive heartbeat to the rendezvous 'x' due to an error of type "
            "RendezvousTimeoutError.",
        ),
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    _echo(
        "worker-lost",
        "the main process noticed that a worker process of it had ended",
        (
            r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
            r"ProcessRaisedException: ",
            r"ProcessExitedException: process \d+ terminated with exit code \d+",
            r"(?:^|\s)EOFError\s*$",
            r"BrokenPipeError: \[Errno 32\] Broken pipe",
            r"A worker died or was killed while executing a task by an unexpected system error",
        ),
        (
            "RuntimeError: DataLoader worker (pid(s) 402) exited unexpectedly",
            "torch.multiprocessing.spawn.ProcessRaisedException: ",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 1",
            "EOFError",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        ),
        "EOFError: Ran out of input",
    ),
    _echo(
        "teardown-noise",
        "clean-up messages of a process that ended",
        (
            r"destroy_process_group\(\) was not called",
            r"process group has NOT been destroyed",
            r"leaked (?:semaphore|shared_memory) objects",
            r"AssertionError: can only test a child process",
        ),
        (
            "[rank0]:[W303 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before "
            "program exit",
            "Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
            "UserWarning: resource_tracker: There appear to be 8 leaked semaphore objects to clean up at shutdown",
            "resource_tracker: There appear to be 2 leaked shared_memory objects to clean up at shutdown",
            "AssertionError: can only test a child process",
        ),
        "dist.destroy_process_group()",
    ),
)
