"""Failed GPU kernels and hardware, and drivers, fabric managers or builds of torch that do not fit the GPU."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_SANITIZE = (
    "find the kernel: run one rank under `compute-sanitizer python train.py`, or with `--env CUDA_LAUNCH_BLOCKING=1`"
)
_XIDS = "https://docs.nvidia.com/deploy/xid-errors/"
_FAULTED = (
    r"an illegal memory access was encountered|misaligned address|unspecified launch failure"
    r"|an illegal instruction was encountered|the launch timed out and was terminated"
)
_NOT_FAULTED = (r"Assertion `.*` failed", r"device-side assert triggered", r"uncorrectable ECC")
_HEALTH = "look at the GPU: `nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER` and `dmesg | grep -i xid`"
_BROKEN = "memory, link or board of this GPU reported a fault that software cannot repair; no code of the run caused it"
_TAKE_OUT = (
    "take the node or GPU out (`--gpus` without it, `srun --exclude=NODE`), reboot it and report it",
    _HEALTH,
    "continue from the last checkpoint on other GPUs",
)
_ASYNC = "the Python frame is only where the error was noticed: kernels run asynchronously"
#: A warning that CUDA cannot be used is no cause where something else ended the run.
_OTHER_EXCEPTION = r"^(?!.*(?:(?i:nccl|cuda|gpu)|driver|NVIDIA|bf16|fp16|ChildFailed))[\w.]+(?:Error|Exception)\b: \S"
DOCTOR = "`ddplaunch doctor` shows driver, CUDA and GPUs as this interpreter sees them"
FIT_WHY = "kernel module, libcuda (also one from a compat directory) and the CUDA of torch must fit each other"
FIT_FIXES = (
    "compare `cat /proc/driver/nvidia/version` with `nvidia-smi`; after a driver update reboot or reload the modules",
    "remove `/usr/local/cuda/compat` from LD_LIBRARY_PATH",
    "install a torch for an older CUDA",
    DOCTOR,
)

FABRIC_WHY = (
    "on NVSwitch systems (HGX, DGX) CUDA starts only after nvidia-fabricmanager of the driver's own version has set up "
    "the fabric"
)
FABRIC_FIXES = (
    "`systemctl status nvidia-fabricmanager`; start it: `sudo systemctl enable --now nvidia-fabricmanager`",
    "its version must equal the driver's: compare `nv-fabricmanager --version` with `nvidia-smi`",
    "where only NVLink SHARP fails: `--env NCCL_NVLS_ENABLE=0`",
)
SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="driver-too-old",
        tier=Tier.CAUSE,
        patterns=(r"NVIDIA driver on your system is too old \(found version (?P<major>\d{1,2})0(?P<minor>\d)0\)",),
        log_unless=(_OTHER_EXCEPTION,),
        what="the NVIDIA driver supports CUDA {major}.{minor} at most, older than this torch needs",
        why="a build of torch needs a driver at least as new as its CUDA's; without it CUDA counts as unavailable",
        fixes=(
            "install a torch built for CUDA {major}.{minor} or older: https://pytorch.org/get-started/previous-versions",
            "update the driver on every node: https://www.nvidia.com/drivers",
            DOCTOR,
        ),
        examples=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
            "driver by downloading and installing a new version",
            "torch/cuda/__init__.py:118: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old "
            "(found version 10020). Please update",
            "The NVIDIA driver on your system is too old (found version 9010).",
        ),
        near_misses=("NVIDIA driver 535.104.05 on your system",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/cuda/Module.cpp",
    ),
    Signature(
        code="driver-too-old",
        tier=Tier.CAUSE,
        patterns=(
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"forward compatibility was attempted on non supported HW",
            r"Driver/library version mismatch",
            r"system has unsupported display driver / cuda driver combination",
            r"unsatisfied condition: cuda ?[><=]+ ?[\d.]+",
            r"the provided PTX was compiled with an unsupported toolchain",
        ),
        log_unless=(_OTHER_EXCEPTION,),
        what="driver and CUDA do not fit: `{line}`",
        why=FIT_WHY,
        fixes=FIT_FIXES,
        examples=(
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted "
            "on non supported HW",
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver",
            "Failed to initialize NVML: Driver/library version mismatch",
            "Error 803: system has unsupported display driver / cuda driver combination",
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        ),
        near_misses=("NCCL INFO cudaDriverVersion 12040",),
    ),
    Signature(
        code="cuda-arch-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"no kernel image is available for execution on the device",),
        log_with=(
            r"(?P<gpu>\b\w.{2,80}?) with CUDA capability (?P<capability>sm_\w+) is not compatible with the "
            r"current PyTorch installation",
        ),
        what="this torch has no code for {gpu} ({capability})",
        why="a build of torch has code for the compute capabilities of its list, which the warning above the failure "
        "shows; new GPUs need a build for a newer CUDA",
        fixes=(
            "install a torch whose `torch.cuda.get_arch_list()` has {capability}: https://pytorch.org/get-started/locally",
        ),
        examples=("RuntimeError: CUDA error: no kernel image is available for execution on the device",),
        near_misses=("undefined symbol: ncclCommRegister",),
    ),
    Signature(
        code="cuda-arch-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"HIP (?:error: |failure (?:\d+ )?')(?P<line>invalid device function)",
            r"(?P<line>hipErrorNoBinaryForGpu)\b",
        ),
        what="a library has no code for this AMD GPU: HIP says `{line}`",
        why="torch, RCCL or an extension was built for other architectures (gfx…) than this GPU's",
        fixes=(
            "compare `rocminfo | grep -m1 gfx` with `python -c 'import torch; print(torch.cuda.get_arch_list())'`",
            "rebuild extensions with `PYTORCH_ROCM_ARCH=gfx…` of this GPU, or install a torch whose list has it",
            "a GPU whose family is in the list: `--env HSA_OVERRIDE_GFX_VERSION=10.3.0`, the family's number",
        ),
        examples=(
            "RuntimeError: HIP error: invalid device function",
            '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"',
        ),
        near_misses=("RuntimeError: CUDA error: invalid device function",),
        source="https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/3rd-party/pytorch-install.html",
    ),
    Signature(
        code="cuda-arch-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"no kernel image is available for execution on the device",
            r"(?:CUDA error|cuda runtime error \(\d+\)|Cuda failure)\S* ?:? ?\d* ?'?(?P<line>invalid device function)",
            r"(?:CUDA(?: driver)? error|Cuda failure)\S* ?\d* ?'?(?P<line>named symbol not found)",
            r"(?:CUDA(?: driver)? error|Triton Error \[CUDA\]): (?P<line>device kernel image is invalid)",
            r"ptxas fatal +: (?P<line>Value 'sm_\w+' is not defined for option 'gpu-name')",
            r"Error: .{0,80}?(?P<line>(?:not |un)supported (?:on|for) sm_?\d+\w*|only supports \w+ GPUs or newer)",
        ),
        what="a library has no code for this GPU: `{line}`",
        why="torch, NCCL or an extension was built for other compute capabilities than this GPU's; mixed GPU models in "
        "one job show it on some ranks only",
        fixes=(
            "compare `python -c 'import torch; print(torch.cuda.get_arch_list())'` with "
            "`nvidia-smi --query-gpu=name,compute_cap --format=csv`",
            "install a torch whose list has this GPU; new GPUs need a build for a newer CUDA: "
            "https://pytorch.org/get-started/locally",
            "rebuild extensions with `TORCH_CUDA_ARCH_LIST` of this GPU, and use the NCCL that came with torch",
        ),
        examples=(
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "RuntimeError: cuda runtime error (48) : no kernel image is available for execution on the device at "
            "/opt/x.cu:69",
            "gpu1:40:301 [0] enqueue.cc:47 NCCL WARN Cuda failure 'invalid device function'",
            "9b2b44ef0c11:40:301 [0] enqueue.cc:47 NCCL WARN Cuda failure 'named symbol not found'",
            "NCCL WARN Cuda failure 98 'invalid device function'",
            "RuntimeError: CUDA error: device kernel image is invalid",
            "torch._inductor.exc.InductorError: RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
            "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
            "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
            "RuntimeError: cutlass kernel not supported on sm_70",
        ),
        near_misses=("undefined symbol: ncclCommRegister",),
    ),
    Signature(
        code="cuda-arch-mismatch",
        tier=Tier.HINT,
        patterns=(
            r"(?P<gpu>\b\w.{2,80}?) with CUDA capability (?P<capability>sm_\w+) is not compatible with the "
            r"current PyTorch installation",
            r"Found GPU\d* (?P<gpu>.*?) which is of cuda capability (?P<capability>[\d.]+)\.",
        ),
        log_unless=(_OTHER_EXCEPTION,),
        what="{gpu} ({capability}) is not among the GPUs that this torch was built for",
        why="torch ships code for a list of compute capabilities; a kernel that is missing fails when it is "
        "first launched",
        fixes=("install a torch whose `torch.cuda.get_arch_list()` has {capability}",),
        examples=(
            "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
            "installation.",
            "    Found GPU0 GeForce GT 710 which is of cuda capability 3.5.",
        ),
        near_misses=("The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_80 sm_86 sm_90.",),
    ),
    Signature(
        code="fabric-manager-down",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:Error |Cuda failure )?(?:802: )?'?system not yet initialized",
            r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY",
            r"configuration error in the Fabric Manager or NVSwitches",
        ),
        log_unless=(_OTHER_EXCEPTION,),
        what="the NVSwitch fabric is not ready: `{line}`",
        why=FABRIC_WHY,
        fixes=FABRIC_FIXES,
        examples=(
            "RuntimeError: CUDA driver error: system not yet initialized",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "Cuda failure 802 'system not yet initialized'",
            "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
            "Search for `cudaErrorSystemNotReady' in https://docs.nvidia.com/cuda/cuda-runtime-api/",
            "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY",
        ),
        near_misses=("process group not yet initialized", "nvidia-fabricmanager.service: active (running)"),
        source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
    ),
    Signature(
        code="device-side-assert",
        tier=Tier.CAUSE,
        patterns=(
            r"(?P<file>[\w.-]+\.(?:cu|cuh|h|hpp|cpp|py))[:(]\d+[:)].*?: block: ?\[[\d, ]+\], thread: "
            r"?\[[\d, ]+\].*Assertion `(?P<assertion>.+?)`? failed",
            r"(?P<file>[\w.-]+\.(?:cu|cuh)):\d+: .*Assertion `(?P<assertion>.+?)` failed",
        ),
        what="an assertion failed in a GPU kernel ({file}): `{assertion}`",
        why="a kernel checks what it is given, nearly always a label or index outside of the range of classes, rows or "
        "embeddings; " + _ASYNC,
        fixes=(
            "check the range where the batch is made: `assert 0 <= labels.min() and labels.max() < num_classes`, and "
            "that token ids are below the embedding's size",
            "get the true frame: `--env CUDA_LAUNCH_BLOCKING=1`, or one step on the CPU",
        ),
        examples=(
            "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: "
            "[7,0,0] Assertion `t >= 0 && t < n_classes` failed.",
            "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:84: operator(): block: [0,0,0], thread: [0,0,0] "
            "Assertion "
            '`index >= -sizes[i] && index < sizes[i] && "index out of bounds"` failed.',
            "/opt/conda/THCUNN/ClassNLLCriterion.cu:105: void cunn_ClassNLLCriterion_updateOutput_kernel(): block: "
            "[0,0,0], thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed.",
            "/tmp/kernels/gather.cu:41: void gather(int*): Assertion `row < rows` failed.",
            "/pytorch/aten/src/THC/THCTensorIndex.cu:362: void indexSelectLargeIndex(): block: [3,0,0], thread: "
            "[31,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        ),
        near_misses=("python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av))' failed.",),
        unless=(r"checkForNaN|NaN Check",),
    ),
    Signature(
        code="device-side-assert",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:CUDA|Cuda|cuda|HIP)\b.{0,60}device-side assert triggered",
            r"THCudaCheck FAIL.*: device-side assert triggered",
        ),
        what="an assertion failed in a GPU kernel (the log does not say which)",
        why="nearly always a label or index out of range; " + _ASYNC,
        fixes=(
            "get the assertion and the true frame: `--env CUDA_LAUNCH_BLOCKING=1`, or one step on the CPU",
            "check labels and token ids against the number of classes and the embedding's size",
        ),
        examples=(
            "RuntimeError: CUDA error: device-side assert triggered",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            "RuntimeError: cuda runtime error (59) : device-side assert triggered at "
            "/pytorch/aten/src/THC/THCReduceAll.cuh:327",
            "THCudaCheck FAIL file=/opt/THCReduceAll.cuh line=327 error=59 : device-side assert triggered",
            "NCCL WARN Cuda failure 'device-side assert triggered'",
            "RuntimeError: Triton Error [CUDA]: device-side assert triggered",
        ),
        near_misses=("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",),
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.CAUSE,
        patterns=(r"NVRM: Xid \((?P<device>[^)]+)\): (?P<xid>(?!45\b|43\b|31\b|13\b)\d+)\b,?(?P<detail>.*)",),
        what="the driver reported Xid {xid} for the GPU at {device}:{detail}",
        why="an Xid is the driver's own error report: 79 fell off the bus, 48, 63, 64, 94 and 95 memory (ECC), 74 and "
        "144 to 150 NVLink, 119 and 120 its firmware",
        fixes=(
            "take the node out of the job (`srun --exclude=NODE`) and report it; a reset or reboot is needed "
            "after most Xids",
            _HEALTH,
            f"meaning of each number: {_XIDS}",
        ),
        examples=(
            "[1084456.074562] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",
            "kernel: NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
            "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00",
        ),
        near_misses=(
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        ),
        source=_XIDS,
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.HINT,
        patterns=(r"NVRM: Xid \((?P<device>[^)]+)\): (?P<xid>13|31|43)\b",),
        what="the driver reported Xid {xid} for the GPU at {device}",
        why="13, 31 and 43 follow from a kernel that read or wrote where it must not",
        fixes=(_SANITIZE,),
        examples=("NVRM: Xid (PCI:0000:41:00): 31, pid=4411, name=python, Ch 00000008, MMU Fault",),
        near_misses=("NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",),
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:CUDA error|Cuda failure|cuda runtime error)\S* .*?(?P<line>uncorrectable (?:ECC|NVLink) error\w*)",
            r"GPU has fallen off the bus|GPU is lost|NVRM: (?P<line>fallen off the bus)",
            r"Unable to determine the device handle for GPU\s?\S+",
            r"CUDA error: (?P<line>hardware stack error)",
            r"NVRM: .*(?P<line>RmInitAdapter failed)",
        ),
        what="a GPU failed: `{line}`",
        why=_BROKEN,
        fixes=_TAKE_OUT,
        examples=(
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.",
            "               NVRM: fallen off the bus and is not responding to commands.",
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
            "RuntimeError: CUDA error: hardware stack error",
            "[   21.091872] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)",
            "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to "
            "recover this GPU",
        ),
        near_misses=("Volatile Uncorr. ECC                           | 0 |", "PCIe Bus Error: severity=Corrected"),
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.CAUSE,
        patterns=(r"(?:CUDA error: |Cuda failure (?:\d+ )?')(?P<line>unspecified launch failure|unknown error)",),
        log_with=(r"(?P<lost>GPU (?:is lost|has fallen off the bus))",),
        what="a GPU failed: CUDA says `{line}`, and the driver `{lost}`",
        why=_BROKEN,
        fixes=_TAKE_OUT,
        examples=("RuntimeError: CUDA error: unspecified launch failure",),
        near_misses=("RuntimeError: CUDA error: an illegal memory access was encountered",),
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.CAUSE,
        patterns=(_FAULTED,),
        log_with=(
            r"NVRM: Xid \((?P<device>[^)]+)\): (?P<xid>(?!45\b)\d+)\b,?(?: pid=[^,\s]+,?)?"
            r"(?: name=[^,\s]+,?)?(?: Ch \w+,?)?(?: errorString)? *(?P<detail>[^,]{1,60})",
        ),
        log_unless=_NOT_FAULTED,
        what="a kernel faulted on the GPU at {device}: `{line}`, and the driver reported Xid {xid} ({detail})",
        why="13, 31 and 43 follow from a kernel that read or wrote where it must not, most others from the GPU, its "
        "power or its links; " + _ASYNC,
        fixes=(f"what {{xid}} means: {_XIDS}", _SANITIZE, "if it stays on one GPU whatever runs there: " + _HEALTH),
        examples=("RuntimeError: CUDA error: unspecified launch failure",),
        near_misses=("CUDA error: device-side assert triggered",),
        source=_XIDS,
    ),
    Signature(
        code="gpu-fault",
        tier=Tier.CAUSE,
        patterns=(
            _FAULTED,
            r"(?:CUDA error|Cuda failure|HIP error)\S* ?\d* ?'?(?P<line>invalid program counter)",
            r"(?:CUDA error: |Cuda failure (?:\d+ )?')(?P<line>unknown error)",
            r"HSA_STATUS_ERROR_\w+|HW Exception by GPU node-\d+|amdgpu \S+ .*uncorrectable (?:hardware )?error",
            r"Memory access fault by GPU node-\d+",
            r"PhysX error: (?P<line>.*(?:failed!|error) 7(?:00|1[0-9])\b)",
        ),
        log_unless=_NOT_FAULTED,
        what="a kernel faulted on the GPU: `{line}`",
        why="a kernel (often a custom, Triton or fused one) touched memory that is not its own, or the GPU "
        "itself is at fault; " + _ASYNC,
        fixes=(
            _SANITIZE,
            "leave custom kernels out one by one (flash attention, apex, `torch.compile`), and update them to fit "
            "this torch",
            "if it stays on one GPU whatever runs there: " + _HEALTH,
        ),
        examples=(
            "torch.AcceleratorError: CUDA error: misaligned address",
            "[rank0]:[E ProcessGroupNCCL.cpp:1414] [PG 2 Rank 0] Process group watchdog thread terminated with "
            "exception: CUDA error: an illegal memory access was encountered",
            "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered at "
            "/opt/THCCachingHostAllocator.cpp:265",
            "RuntimeError: CUDA error: unspecified launch failure",
            "THCudaCheck FAIL file=/opt/Copy.cu line=84 error=4 : unspecified launch failure",
            "NCCL WARN Cuda failure 'an illegal memory access was encountered'",
            "NCCL WARN Cuda failure 999 'unknown error'",
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f.",
            "[Error] [omni.physx.plugin] PhysX error: Fetching GPU Narrowphase failed! 700",
            "RuntimeError: CUDA error: the launch timed out and was terminated",
            "RuntimeError: CUDA error: an illegal instruction was encountered",
            "RuntimeError: CUDA error: invalid program counter",
            "RuntimeError: CUDA error: unknown error",
            "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
            "Error an illegal memory access was encountered at line 529 in file /src/csrc/ops.cu",
            ":0:rocdevice.cpp:2724: Callback: Queue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
            "HW Exception by GPU node-1 (Agent handle: 0x5) reason :GPU Hang",
            "amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        ),
        near_misses=(
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "Search for `cudaErrorMisalignedAddress' in https://docs.nvidia.com/cuda/",
        ),
    ),
)
