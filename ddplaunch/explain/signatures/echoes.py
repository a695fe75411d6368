"""What follows from a failure elsewhere: in NCCL, gloo and the store on other ranks, in launchers and schedulers."""

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
    Signature(
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(
            r"Connection closed by remote peer (?P<peer>[^<\s]+)",
            r"Call to (?:recv from|send to) (?P<peer>[^<\s]+).* failed : (?:Broken pipe|Connection reset by peer)",
            r"socketPollConnect:? .*?(?P<peer>[\w.:-]+<\d+>).*(?:refused|reset|exceeded)",
            r"socketProgress\w*:? Call to (?:recv from|send to) (?P<peer>[^<\s]+)",
            r"NCCL WARN (?:\w+: )?Connect to (?P<peer>[^<\s]+<\d+>) failed : Connection refused",
        ),
        what="lost connection to {peer}",
        examples=(
            "ib-05:388:801 [1] include/socket.h:423 NCCL WARN Net : Connection closed by remote peer ib-02<47111>",
            "socketProgress: Connection closed by remote peer worker-1.local<40031>",
            "NCCL WARN Net : Call to recv from 10.0.0.4<33211> failed : Broken pipe",
            "NCCL WARN Net : Call to send to 10.0.0.4<33211> failed : Connection reset by peer",
            "NCCL WARN socketPollConnect: Connect to 10.1.0.7<40021> returned 111(Connection refused) errno 115",
            "NCCL WARN socketProgressOpt: Call to recv from 10.1.0.7<40021> failed : Connection timed out",
            "include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused",
        ),
        near_misses=(
            "NCCL WARN socketStartConnect: Connect to 172.17.0.2<40021> failed : Software caused connection abort",
        ),
    ),
    Signature(  # NCCL's summary; the error is in a `NCCL WARN` line, after `Last error:`, or on another rank
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(
            r"(?P<line>ncclRemoteError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage)\b",
            r"NCCL error.*(?P<line>remote process exited or there was a network error)",
            r"[NR]CCL (?:error|failure).*(?P<line>unhandled system error|internal error(?= - please report)"
            r"|unhandled cuda error)",
            r"NCCL communicator was aborted",
        ),
        what="NCCL gave up: {line}",
        examples=(
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "[rank2]: torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, remote "
            "process exited or there was a network error, NCCL version 2.21.5",
            "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
            "ncclInternalError: Internal check failed.",
            "RuntimeError: NCCL error in: /opt/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
            "RuntimeError: RCCL error in: /opt/ProcessGroupNCCL.cpp:825, unhandled system error, RCCL version 2.7.8",
            "RuntimeError: NCCL error in: /opt/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "DistBackendError: NCCL error in: NCCLUtils.hpp:1, internal error - please report this issue to the "
            "NCCL developers",
            "NCCL communicator was aborted on rank 1.",
            "NCCL failure common.cu:874 'unhandled system error'",
        ),
        near_misses=('sample: "Connection reset by peer, NCCL error" -> label: incident',),
    ),
    Signature(
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(
            r"\[(?P<line>Proxy Service \d+)\] Failed to execute operation",
            r"(?P<line>Collective|\[Rank \d+\]) WorkNCCL\(.*raised the following async exception",
            r"async error on communicator",
            r"(?P<line>\[Rank \d+\]) found async exception when checking for NCCL errors",
            r"\[Rank \d+\] Found key in store: NCCLABORTEDCOMM:.*from rank: (?P<line>\d+)",
            r"NCCL WARN \[(?P<line>Service thread)\]",
            r"NCCL WARN \[(?P<line>Proxy Service[^\]]*)\]",
            r"(?P<line>Socket (?:recv|send)) failed",
        ),
        what="{line} failed because a peer was gone",
        examples=(
            "gpu-3:1:2 [3] proxy.cc:1519 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from "
            "rank 3, retcode 3",
            "[Rank 2] Collective WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=600000) raised the following async "
            "exception: NCCL error: remote process exited",
            "NCCL async error on communicator: unhandled system error",
            "[Rank 3] found async exception when checking for NCCL errors: NCCL error: unhandled system error",
            "[Rank 0] Found key in store: NCCLABORTEDCOMM:1a-2b, from rank: 1. This means that rank has aborted "
            "its NCCL",
            "gpu:1:2 [1] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 1, "
            "res=3, closed=0",
            "NCCL WARN [Proxy Service UDS 2] Could not receive type from localRank 1",
            "node:1:2 [0] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x55a51966cc80",
            "NCCL WARN Socket send failed, socketStartConnect",
        ),
        near_misses=("NCCL INFO [Proxy Service] Device 0 CPU core 3",),
    ),
    Signature(  # a connection that is being torn down reports 5 for everything that was under way
        code="infiniband-echo",
        tier=Tier.ECHO,
        patterns=(r"Got completion (?:from peer \S+ )?with (?:error |status=(?:IBV_\w+\()?)(?P<status>5)\b",),
        what="InfiniBand flushed the open requests (status {status})",
        examples=(
            "NCCL WARN NET/IB : Got completion from peer 10.0.0.3<41> with error 5, opcode 0, len 0, vendor err 249",
        ),
        near_misses=("NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",),
    ),
    Signature(  # SIGABRT, exit -6, so that a rank whose collective failed does not go on with wrong data
        code="nccl-watchdog-abort",
        tier=Tier.ECHO,
        patterns=(
            r"taking the entire process down",
            r"(?P<line>watchdog thread terminated) with exception(?!.*CUDA error)",
            r"Some NCCL operations have failed or timed out",
            r"Terminating the process after attempting to dump debug info",
            r"Observed flight recorder dump signal from another rank",
        ),
        what="the NCCL watchdog ended its process ({line})",
        examples=(
            "[Rank 2] To avoid data inconsistency, we are taking the entire process down.",
            "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] "
            "Watchdog caught collective operation timeout",
            "[E ProcessGroupNCCL.cpp:915] [Rank 1] NCCL watchdog thread terminated with exception: NCCL error: "
            "remote process",
            "[Rank 0] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
            "[PG ID 0 PG GUID 0(default_pg) Rank 5] Observed flight recorder dump signal from another rank via "
            "TCPStore.",
            "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        ),
        near_misses=("Process group watchdog thread terminated with exception: CUDA error: an illegal memory access",),
    ),
    Signature(  # the other rank had died before it could send the number of its parameters
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(r"Rank (?P<rank>\d+) has \d+ params, while rank (?P<other>\d+) has inconsistent 0 params",),
        what="rank {rank} found no parameters on rank {other}",
        examples=(
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 62 params, while rank 0 has "
            "inconsistent 0 params.",
        ),
        near_misses=("but Rank 1 has 4 params, while rank 0 has inconsistent 2 params.",),
    ),
    Signature(
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(
            r"gloo/transport/\w+/.*(?:Connection closed by peer|(?:Read|Write) error) \[(?P<peer>[^\]]*)\]",
            r"^\[?\S*(?:pair|buffer)\.cc:\d+\] (?:Connection closed by peer|(?:Read|Write) error) \[(?P<peer>[^\]]*)\]",
            r"gloo/transport/.*(?:writev|recv|read|write)\b.*?\[?(?P<peer>[\d.]+)\]?:\d+.*(?:Broken "
            r"pipe|Connection reset by peer)",
            r"^(?:RuntimeError: |what\(\): +)*(?P<peer>Connection (?:closed|reset) by peer)",
        ),
        what="gloo lost its connection to {peer}",
        examples=(
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
            "peer [10.77.0.5]:3981. This is typically caused by a remote worker crashing.",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [10.1.0.3]:4411: "
            "Connection reset by peer",
            "[pair.cc:598] Connection closed by peer [127.0.0.1]:1024",
            "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:133] Write error [10.1.0.3]:4411: Broken pipe",
            "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:575] writev [10.1.0.3]:4411: Broken pipe",
            "RuntimeError: Connection reset by peer",
        ),
        near_misses=(
            'sample: "Connection reset by peer, NCCL error" -> label: incident',
            "client_loop: send disconnect: Broken pipe",
        ),
    ),
    Signature(
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(r"(?P<line>Horovod has been shut down)",),
        what="Horovod ended the work of all ranks because one had failed or was done",
        examples=(
            "Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt",
        ),
        near_misses=("[1,0]<stdout>: Horovod is shut down by the script at its end",),
    ),
    Signature(
        code="peer-lost",
        tier=Tier.ECHO,
        patterns=(r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors",),
        what="rank {rank} reached the barrier, but rank 0 gave up",
        examples=(
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0.",
        ),
        near_misses=("Rank 1 failed to pass monitoredBarrier in 8000 ms",),
    ),
    Signature(  # the process that hosts the TCPStore, rank 0 or the launcher, has ended
        code="store-lost",
        tier=Tier.ECHO,
        patterns=(
            r"(?P<line>(?:recv|send)(?:Value|Vector|Bytes|String)\w*) failed on",
            r"Failed to recv, got 0 bytes",
            r"Failed to check the \"?(?P<line>should dump)\"? flag on (?:TCPStore|PrefixStore)",
            r"(?P<line>waitForInput): poll for socket .* returned",
        ),
        what="lost the store ({line})",
        examples=(
            "[c10d] recvValue failed on SocketImpl(fd=64, addr=[localhost]:35122, remote=[localhost]:45120): "
            "Failed to recv, got 0",
            "[c10d] recvVector failed on SocketImpl(fd=4): Failed to recv, got 0 bytes.",
            "[c10d] sendBytes failed on SocketImpl(fd=4, addr=[node1]:1, remote=[node2]:2): Broken pipe",
            "[c10d] sendValue failed on SocketImpl(fd=4): Broken pipe",
            "[c10d] sendVector failed on SocketImpl(fd=72, addr=[n2]:51022, remote=[n1]:29500): Broken pipe",
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
            "[c10d] recvBytes failed on SocketImpl(fd=4)",
            'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
            "[c10d] waitForInput: poll for socket SocketImpl(fd=10) returned 0, likely a timeout",
        ),
        near_misses=(
            "Exception raised from sendBytes at ../torch/csrc/distributed/c10d/Utils.hpp:643 (most recent call first):",
        ),
    ),
    Signature(  # its writer has ended: a peer that failed first, or the attempt before this one
        code="stale-rendezvous",
        tier=Tier.ECHO,
        patterns=(
            r"(?P<event>connectFullMesh failed) with .*Connection refused",
            r"(?P<event>failed to connect, willRetry)=\d",
        ),
        what="gloo could not reach an address from the store ({event})",
        examples=(
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/pair.cc:144] timed out "
            "connecting: SO_ERROR: Connection refused, remote=[10.77.0.5]:34111",
            "[/pytorch/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1, retry=0, "
            "retryLimit=3, rank=1",
        ),
        near_misses=(
            "Gloo connectFullMesh failed with [/pytorch/gloo/pair.cc:144] no route to host, remote=[127.0.1.1]:34111",
        ),
    ),
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
            r"(?:exited|failed) with (?:a )?non-zero (?:status|exit code)",
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
            r"AlgorithmError: Exit Code",
            r"Number of errored trials: [1-9]|The [Kk]ernel (?:crashed while executing code|appears to have died)",
            r"\bPod: \S+ exited with code [1-9]|\bError executing job with overrides: ",
            r"^Finished: (?:FAILURE|ABORTED)$|^Workflow failed\.$",
            r"^\S+ +\d+/\d+ +(?:Init:)?(?:Error|CrashLoopBackOff) +\d",  # of `kubectl get pods`
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
            "ValueError: Error training mnist-1: Failed Reason: AlgorithmError: Exit Code: 139",
            "Finished: FAILURE",
            "birds-worker-0        0/1     Error     2 (41s ago)   3m",
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
            r"Exception: process \d+ terminated with exit code \d+",
        ),
        (
            "RuntimeError: DataLoader worker (pid(s) 402) exited unexpectedly",
            "torch.multiprocessing.spawn.ProcessRaisedException: ",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 1",
            "EOFError",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
            "Exception: process 1 terminated with exit code 1",
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
