"""How a driver, fabric or build that does not fit the GPU shows; refuses to probe one."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

#: A warning that CUDA cannot be used is no cause where something else ended the run.
_OTHER_EXCEPTION = r"^(?!.*(?:NCCL|nccl|CUDA|cuda|GPU|gpu|driver|NVIDIA|ChildFailed))[\w.]*(?:Error|Exception)\b: \S"
_DOCTOR = "`ddplaunch doctor` shows driver, CUDA and GPUs as this interpreter sees them"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="driver-too-old",
        role="root",
        literals=("driver on your system is too old",),
        patterns=(r"NVIDIA driver on your system is too old \(found version (?P<major>\d{1,2})0(?P<minor>\d)0\)",),
        log_unless=(_OTHER_EXCEPTION,),
        what="the NVIDIA driver supports CUDA {major}.{minor} at most, older than this torch needs",
        why="a build of torch needs a driver at least as new as its CUDA's; without it CUDA counts as unavailable",
        fixes=(
            "install a torch built for CUDA {major}.{minor} or older: https://pytorch.org/get-started/previous-versions",
            "update the driver on every node: https://www.nvidia.com/drivers",
            _DOCTOR,
        ),
        examples=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
            "driver by downloading and installing a new version",
            "torch/cuda/__init__.py:118: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old "
            "(found version 10020). Please update",
            "The NVIDIA driver on your system is too old (found version 9010).",
        ),
        near_misses=("NVIDIA driver 535.104.05 on your system",),
        priority=66,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/cuda/Module.cpp",
    ),
    Signature(
        code="driver-too-old",
        role="root",
        literals=(
            "driver version is insufficient",
            "forward compatibility",
            "Driver/library version mismatch",
            "unsupported display driver",
            "unsatisfied condition: cuda",
            "PTX was compiled with an unsupported toolchain",
            "unsupported toolchain",
        ),
        patterns=(
            r"(?P<message>CUDA driver version is insufficient for CUDA runtime version)",
            r"(?P<message>forward compatibility was attempted on non supported HW)",
            r"(?P<message>Driver/library version mismatch)",
            r"(?P<message>system has unsupported display driver / cuda driver combination)",
            r"(?P<message>unsatisfied condition: cuda ?[><=]+ ?[\d.]+)",
            r"(?P<message>the provided PTX was compiled with an unsupported toolchain)",
        ),
        log_unless=(_OTHER_EXCEPTION,),
        what="driver and CUDA do not fit: `{message}`",
        why="kernel module, libcuda (also one from a compat directory) and the CUDA of torch must fit each other",
        fixes=(
            "compare `cat /proc/driver/nvidia/version` with `nvidia-smi`; after a driver update reboot or reload "
            "the modules",
            "remove `/usr/local/cuda/compat` from LD_LIBRARY_PATH",
            "install a torch for an older CUDA",
            _DOCTOR,
        ),
        examples=(
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was "
            "attempted on "
            "non supported HW",
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver",
            "Failed to initialize NVML: Driver/library version mismatch",
            "Error 803: system has unsupported display driver / cuda driver combination",
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        ),
        near_misses=("NCCL INFO cudaDriverVersion 12040",),
        priority=66,
    ),
    Signature(
        code="cuda-arch-mismatch",
        role="root",
        literals=(
            "no kernel image is available",
            "invalid device function",
            "named symbol not found",
            "device kernel image is invalid",
            "ptxas fatal",
        ),
        patterns=(
            r"(?P<message>no kernel image is available for execution on the device)",
            r"(?:CUDA error|cuda runtime error \(\d+\)|Cuda failure)\S* ?:? ?\d* ?'?(?P<message>invalid device "
            r"function)",
            r"(?:CUDA(?: driver)? error|Cuda failure)\S* ?\d* ?'?(?P<message>named symbol not found)",
            r"CUDA(?: driver)? error: (?P<message>device kernel image is invalid)",
            r"ptxas fatal +: (?P<message>Value 'sm_\w+' is not defined for option 'gpu-name')",
        ),
        what="a library has no code for this GPU: CUDA says `{message}`",
        why="torch, NCCL or an extension was built for other compute capabilities than this GPU's; mixed GPU "
        "models in one job "
        "show it on some ranks only",
        fixes=(
            "compare `python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'`",
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
            "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
        ),
        near_misses=("undefined symbol: ncclCommRegister",),
        priority=66,
    ),
    Signature(
        code="cuda-arch-mismatch",
        role="confirmation",
        literals=(
            "is not compatible with the current PyTorch installation",
            "which is of cuda capability",
        ),
        patterns=(
            r"(?P<gpu>\b\w.{2,80}?) with CUDA capability (?P<capability>sm_\w+) is not compatible with the "
            r"current PyTorch",
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
        priority=50,
    ),
    Signature(
        code="fabric-manager-down",
        role="root",
        literals=(
            "system not yet initialized",
            "Fabric Manager or NVSwitches",
            "cudaErrorSystemNotReady",
            "CUDA_ERROR_SYSTEM_NOT_READY",
        ),
        patterns=(
            r"(?P<message>(?:Error |Cuda failure )?(?:802: )?'?system not yet initialized)",
            r"(?P<message>cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY)",
            r"(?P<message>configuration error in the Fabric Manager or NVSwitches)",
        ),
        log_unless=(_OTHER_EXCEPTION,),
        what="the NVSwitch fabric is not ready: `{message}`",
        why="on NVSwitch systems (HGX, DGX) CUDA starts only after nvidia-fabricmanager of the driver's own "
        "version has set up "
        "the fabric",
        fixes=(
            "`systemctl status nvidia-fabricmanager`; start it: `sudo systemctl enable --now nvidia-fabricmanager`",
            "its version must equal the driver's: compare `nv-fabricmanager --version` with `nvidia-smi`",
            "where only NVLink SHARP fails: `--env NCCL_NVLS_ENABLE=0`",
        ),
        examples=(
            "RuntimeError: CUDA driver error: system not yet initialized",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "Cuda failure 802 'system not yet initialized'",
            "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
            "Search for `cudaErrorSystemNotReady' in https://docs.nvidia.com/cuda/cuda-runtime-api/",
            "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY",
        ),
        near_misses=("process group not yet initialized", "nvidia-fabricmanager.service: active (running)"),
        priority=68,
        source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
    ),
)
