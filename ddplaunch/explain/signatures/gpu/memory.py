"""GPUs that ran out of memory, in the words of each program and version."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddplaunch.explain.signatures.signature import Signature, Tier
from ddplaunch.values.words import size_text

_SMALLER = (
    "run again with half the batch and twice the accumulation: `--batch-size` N/2 `--accum` 2, same effective batch"
)
_WHO = "see who holds the GPU with `nvidia-smi`, end what is left over, or take idle GPUs: `--gpus free:N`"
_OWN = "give each process its own GPU: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))` before anything uses CUDA"
_FRAGMENTS = "if much is reserved but unallocated: `--env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
_WHY = "weights, gradients, optimizer state and the activations of one batch together did not fit on the GPU"
_HELD = "this process held {used}: if that is far below {total}, " + _WHO
#: Lines of a program that handles it.
_HANDLED = (r"^\s*(?:except|raise|if|assert)\b", r"(?:caught|retry(?! failed)|Retrying|reducing|skipping|halving)")
_RAISED = r"^(?:[\w.]+\.)?(?!ValueError|KeyError|AssertionError|TypeError|NotImplementedError)\w+: "
_NO_MEMORY = r"\b(?:[Oo]ut of|[Ii]nsufficient|[Nn]ot enough) memory\b"
_SIZE = r"(?P<wanted>[\d.]+ (?:[KMGTE]i?B|bytes))"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(r"(?P<line>gradients are inconsistent between workers)",),
        log_with=(rf"Ran out of memory with exception: .*Tried to allocate {_SIZE}",),
        what="a GPU ran out of memory ({wanted} wanted), and fairseq could not recover: {line}",
        why="it passes over the batch on the rank that had no memory, and the others have trained on theirs",
        fixes=(
            "smaller batches: `--max-tokens`, `--batch-size`, with `--update-freq` for the same effective batch",
            _WHO,
        ),
        examples=("RuntimeError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=no_c10d.",),
        near_misses=("WARNING: gradients may be inconsistent",),
        source="https://github.com/facebookresearch/fairseq/blob/main/fairseq/trainer.py",
    ),
    Signature(  # 2.1 and later, every process that sits on the GPU is listed
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            rf"Tried to allocate {_SIZE}\. GPU (?P<gpu>\d+) has a total capac\w+ of (?P<total>[\d.]+ \w+) of which "
            r"(?P<free>[\d.]+ \w+) is free\. .*?Process (?P<other>\d+) has [\d.]+ \w+ memory in use\. "
            r"(?:Including non-PyTorch memory, this process|Process \d+) has",
        ),
        what="GPU {gpu} is full: {wanted} wanted, {free} of {total} free, and several processes share the GPU",
        why="more than one process holds memory on this GPU: ranks that never chose their own, or somebody else's job",
        fixes=(_OWN, _WHO, _SMALLER),
        examples=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of "
            "44.39 GiB of which 31.00 MiB is free. Process 91022 has 7.11 GiB memory in use. Process 91020 has "
            "20.05 GiB memory in use. Of the allocated memory 6.44 GiB is allocated by PyTorch",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacty of "
            "79.15 GiB of which 1.20 GiB is free. Process 411 has 60.00 GiB memory in use. Including non-PyTorch "
            "memory, this process has 17.90 GiB memory in use.",
        ),
        near_misses=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total capacity of "
            "39.38 GiB of which 411.56 MiB is free. Including non-PyTorch memory, this process has 38.51 GiB memory",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
    ),
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            rf"Tried to allocate {_SIZE}\. GPU (?P<gpu>\d+) has a total capac\w+ of (?P<total>[\d.]+ \w+) of which "
            r"(?P<free>[\d.]+ \w+) is free\.(?:.*this process has (?P<used>[\d.]+ \w+) memory in use)?",
        ),
        what="GPU {gpu} is full: {wanted} wanted, {free} of {total} free",
        why=_WHY,
        fixes=(_SMALLER, _HELD, _FRAGMENTS),
        examples=(
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total "
            "capacity of 39.38 GiB of which 411.56 MiB is free. Including non-PyTorch memory, this process has 38.51 "
            "GiB memory in use. Of the allocated memory 35.20 GiB is allocated by PyTorch",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty "
            "of 23.69 GiB of which 10.06 MiB is free. ",
        ),
        near_misses=("GPU 0 has a total capacity of 80 GiB, of which 71 GiB is free before training",),
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
    ),
    Signature(  # 0.4 to 2.0
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            rf"Tried to allocate {_SIZE} \(GPU (?P<gpu>\d+); (?P<total>[\d.]+ \w+) total capacity; "
            r"(?P<allocated>[\d.]+ \w+) already allocated; (?P<free>[\d.]+ \w+) free",
        ),
        what="GPU {gpu} is full: {wanted} wanted, {free} of {total} free, {allocated} allocated by this process",
        why=_WHY + "; where this process allocated far less than the GPU has, other processes hold the rest",
        fixes=(_SMALLER, _WHO, _OWN),
        examples=(
            "RuntimeError: CUDA out of memory. Tried to allocate 392.00 MiB (GPU 0; 47.54 GiB total capacity; 5.11 GiB "
            "already allocated; 40.88 MiB free; 5.12 GiB reserved in total by PyTorch)",
            "RuntimeError: CUDA out of memory. Tried to allocate 1.12 MiB (GPU 0; 22.37 GiB total capacity; 15.87 GiB "
            "already allocated; 3.56 MiB free; 787.74 MiB cached)",
        ),
        near_misses=("GPU 0; 47.54 GiB total capacity; 5.11 GiB already allocated",),
        source="https://github.com/pytorch/pytorch/blob/v1.13.0/c10/cuda/CUDACachingAllocator.cpp",
    ),
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:CUDA|HIP|NPU|XPU|MLU|MUSA|MPS backend) out of memory(?:\.| \(MPS .*\)\.) Tried to allocate",
            r"RESOURCE_EXHAUSTED: (?:XLA:\w+ compile permanent error\. )?(?:Out|Ran out) of memory (?:while|in memory)",
            r"OOM when allocating tensor with shape\S+ (?:and type \w+ )?on \S*device:GPU",
            r"^(?:\S*(?:Error|Exception): )+(?:CUDA|HIP|NPU|XPU) out of memory",
            r"(?:torch\.|cuda\.|c10::|cupy\.\S*|numba\S*)OutOfMemoryError\b: (?!DefaultCPU)\S",
            r"^(?:RuntimeError: )?\[?(?:CRITICAL|ERROR)?:? ?Encountered OOM (?:exception|error)?",
            r"(?:ZE|UR|PI)(?:_RESULT)?_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)\b",
        ),
        unless=_HANDLED,
        what="a GPU ran out of memory",
        why=_WHY,
        fixes=(_SMALLER, _WHO, _FRAGMENTS),
        examples=(
            "torch.OutOfMemoryError: CUDA out of memory.",
            "RuntimeError: CUDA out of memory. Try a smaller batch.",
            "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
            "RuntimeError: NPU out of memory. Tried to allocate 1.50 GiB (NPU 0; 60.97 GiB total capacity)",
            "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
            "  what():  CUDA out of memory. Tried to allocate 512.00 MiB",
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
            "RuntimeError: MPS backend out of memory (MPS allocated: 17.80 GB, max allowed: 18.13 GB). Tried to "
            "allocate 512.00 MB on private pool.",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate.",
            "RuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
            "OOM when allocating tensor with shape[256,64,9] and type float on /job:localhost/replica:0/task:0/device:"
            "GPU:0 by allocator GPU_0_bfc",
            "Encountered OOM exception and not in distributed mode",
            "  what():  oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeCommandQueueExecute, code: "
            "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        ),
        near_misses=(
            "    except torch.cuda.OutOfMemoryError: pass",
            "| epoch 003 | loss 2.31 | gnorm 0.7 | oom 0.000 |",
            "batch size 64: CUDA out of memory. Tried to allocate 2.00 GiB, retrying with 32",
        ),
    ),
    Signature(  # a notebook names the exception above its frames, and the message below may be missing
        code="cuda-out-of-memory",
        tier=Tier.UNCERTAIN,
        patterns=(r"^(?P<line>OutOfMemoryError) +Traceback \(most recent call last\)",),
        what="a GPU ran out of memory",
        why=_WHY,
        fixes=(_SMALLER, _WHO, _FRAGMENTS),
        examples=("OutOfMemoryError                          Traceback (most recent call last)",),
        near_misses=("MemoryError                               Traceback (most recent call last)",),
    ),
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            r"CUDA(?: driver)? [Ee]rror(?: 2)?: out of memory\b",
            r"cuda runtime error \(2\) : out of memory",
            r"(?:Cuda|HIP) (?:failure|error)(?: \S+?)? ?\d* ?'out of memory'",
            r"(?:THCudaCheck FAIL|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Triton Error "
            r"\[CUDA\])\S*.*out of memory",
        ),
        what="a GPU ran out of memory outside of PyTorch's allocator (CUDA or NCCL itself could not allocate)",
        why="the GPU was full when the CUDA context, a library or NCCL's buffers needed memory; often several "
        "processes share one GPU",
        fixes=(_WHO, _OWN, _SMALLER),
        examples=(
            "RuntimeError: CUDA error: out of memory",
            "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
            "node:2134736:2285781 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
            "Cuda failure 2 'out of memory'",
            "HIP failure 'out of memory'",
            "RuntimeError: Triton Error [CUDA]: out of memory",
            "CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
            "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=405 error=2 : out of memory",
        ),
        near_misses=(
            "Out of memory: Killed process 812 (python)",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
        ),
        source="https://github.com/NVIDIA/nccl/issues/962",
    ),
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(r"NCCL WARN Failed to CUDA (?:calloc|malloc)(?: async)? (?P<size>\d+) bytes",),
        what="NCCL could not allocate {size} bytes on its GPU",
        why="NCCL takes its buffers from the same GPU memory after the model has filled it",
        fixes=(_SMALLER, _WHO, "leave room for NCCL: `torch.cuda.set_per_process_memory_fraction(0.95)`"),
        examples=("node:2134736:2285781 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",),
        near_misses=("NCCL INFO CUDA calloc 64 bytes",),
        source="https://github.com/NVIDIA/nccl/issues/962",
    ),
    Signature(
        code="cuda-out-of-memory",
        tier=Tier.GENERAL,
        patterns=(
            r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED",
            r"(?P<line>CUBLAS_STATUS_NOT_INITIALIZED) when calling `cublasCreate",
            r"cublas runtime error : (?P<line>resource allocation failed)",
        ),
        unless=(r"^\s*frame #",),
        log_unless=(r"Assertion .* failed", r"device-side assert"),
        what="a GPU library could not allocate its workspace ({line})",
        why="cuBLAS and cuDNN allocate outside of PyTorch's cache, and the GPU was full; an index out of range before "
        "it gives the same message",
        fixes=(_SMALLER, _WHO, "if memory is free: look for indices out of range with `--env CUDA_LAUNCH_BLOCKING=1`"),
        examples=(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "RuntimeError: CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
            "RuntimeError: cublas runtime error : resource allocation failed at /opt/conda/THCGeneral.cpp:228",
            "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        ),
        near_misses=(
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`",
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        ),
        source="https://github.com/pytorch/pytorch/issues/24838",
    ),
    Signature(  # of other libraries, in whatever words
        code="cuda-out-of-memory",
        tier=Tier.CAUSE,
        patterns=(
            rf"{_RAISED}.{{0,120}}?(?P<line>\b(?:GPU|CUDA|HIP|VRAM|cuda[A-Z]?\w*)\b.{{0,60}}{_NO_MEMORY}.*)",
            rf"{_RAISED}.{{0,120}}?(?P<line>{_NO_MEMORY}.{{0,40}}\b(?:GPU|CUDA|HIP|VRAM|cuda)\b.*)",
            r"(?P<line>CUDA_ERROR_OUT_OF_MEMORY)\b",
            r"(?P<line>Free memory on device .{1,60} on startup is less than desired GPU memory utilization)",
        ),
        unless=_HANDLED,
        what="a GPU ran out of memory: {line}",
        why="what is computed and what is kept did not fit on the GPU together, or other processes hold a part of it",
        fixes=(_WHO, _SMALLER),
        examples=(
            "RuntimeError: cudaMalloc failed: out of memory",
            "triton.runtime.errors.OutOfMemory: out of memory on cuda:3",
            "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
            "ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 71.2 GiB).",
        ),
        near_misses=(
            "ValueError: CUDA out of memory is not a policy",
            "RuntimeError: the CUDA cache has no memory of it",
        ),
    ),
)

_NUMBER = re.compile(r"([\d.]+) (?:([KMGTPE]?)i?B|bytes?)")  # torch writes bytes below a KiB
_OF_DRIVER = 0.05  # of a GPU's memory, which nobody else holds


def told_by_sizes(groups: Mapping[str, str]) -> tuple[str, str, tuple[str, ...]] | None:
    """Return what, why and fixes of an allocation of which the line has all sizes; None where it has not.

    They tell a tensor that no GPU holds, and whether others hold the memory.
    """
    sizes = {name: _bytes(groups.get(name, "")) for name in ("wanted", "free", "total")}
    wanted, free, total = (sizes[name] for name in ("wanted", "free", "total"))
    if total and wanted and wanted > total:
        return (
            f"GPU {groups['gpu']} has {groups['total']} in all, and {groups['wanted']} were wanted at once",
            "one tensor is larger than the GPU: a dimension that was not meant, all pairs of something long, or a "
            "batch far too large",
            ("look at the shapes in the line that wanted it: `print(tensor.shape)` before it", _SMALLER),
        )
    if not (total and free is not None and (used := _bytes(groups.get("used", "")))):
        return None
    full = f"GPU {groups['gpu']} is full: {groups['wanted']} wanted, {groups['free']} of {groups['total']} free"
    others = total - free - used
    if others < _OF_DRIVER * total:
        return full, _WHY, (_SMALLER, _FRAGMENTS)
    return (
        f"{full}, {size_text(round(others))} with other processes",
        f"this process holds {groups['used']} of the GPU, and others hold the rest",
        (_WHO, _OWN, _SMALLER),
    )


def _bytes(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    return float(match[1]) * (1 << 10 * ("", "K", "M", "G", "T", "P", "E").index(match[2] or "")) if match else None
