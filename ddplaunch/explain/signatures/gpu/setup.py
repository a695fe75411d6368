"""GPUs that are missing, invisible or given to two ranks, and broken CUDA libraries or transport between GPUs."""

from __future__ import annotations

from ddplaunch.explain.signatures.gpu.faults import DOCTOR, FABRIC_FIXES, FABRIC_WHY, FIT_FIXES, FIT_WHY
from ddplaunch.explain.signatures.signature import Signature, Tier

_GLOO = "to train without GPUs: `--device cpu` and `init_process_group('gloo')`"


def _not_started(code: str, reason: str, why: str, fixes: tuple[str, ...], source: str) -> Signature:
    """Return what a rank raises that was told only by a warning, lines before, why it has no GPU."""
    return Signature(
        code=code,
        tier=Tier.CAUSE,
        patterns=(
            r"ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            r"No CUDA GPUs are available",
            r"torch\.cuda\.is_available\(\) is False",
        ),
        unless=(r"Warning",),
        log_with=(rf"CUDA initialization: .*?(?P<reason>{reason})",),
        what="CUDA could not start, so there is no GPU: `{reason}`",
        why=why,
        fixes=fixes,
        examples=(
            "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        ),
        near_misses=("UserWarning: CUDA initialization: No CUDA GPUs are available",),
        source=source,
    )


SIGNATURES: tuple[Signature, ...] = (
    _not_started(
        "driver-too-old",
        r"forward compatibility was attempted on non supported HW|Driver/library version mismatch"
        r"|The NVIDIA driver on your system is too old(?: \(found version \d+\))?"
        r"|CUDA driver version is insufficient for CUDA runtime version|system has unsupported display driver",
        FIT_WHY,
        FIT_FIXES,
        "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDAFunctions.cpp",
    ),
    _not_started(
        "fabric-manager-down",
        "system not yet initialized",
        FABRIC_WHY,
        FABRIC_FIXES,
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
    ),
    Signature(
        code="cuda-unavailable",
        tier=Tier.CAUSE,
        patterns=(
            r"Torch not compiled with CUDA enabled",
            r"module '?torch\._C'? has no attribute '_cuda_setDevice",
            r"PyTorch is not linked with support for cuda devices",
        ),
        what="this build of torch has no CUDA (CPU wheel)",
        why="the script asks for a GPU, but the installed torch was built for CPUs only",
        fixes=(
            "install a CUDA build of torch that the driver supports: https://pytorch.org/get-started/locally",
            _GLOO,
            DOCTOR,
        ),
        examples=(
            "AssertionError: Torch not compiled with CUDA enabled",
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            "RuntimeError: PyTorch is not linked with support for cuda devices",
        ),
        near_misses=("    torch._C._cuda_setDevice(device)", "torch.cuda.is_available() is False: using the CPU"),
        source="https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py",
    ),
    Signature(
        code="cuda-unavailable",
        tier=Tier.CAUSE,
        patterns=(r"(?:all CUDA-capable devices are|CUDA-capable device\(s\) is/are) busy or unavailable",),
        unless=(r"UserWarning",),
        what="another process holds the GPU that this rank asked for: CUDA says `{line}`",
        why="GPUs in compute mode EXCLUSIVE_PROCESS take one process each: ranks that never chose their own all "
        "ask for GPU 0, or a process that is left over still holds it",
        fixes=(
            "before anything is moved to a GPU: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`",
            "see the mode and who holds each GPU: `nvidia-smi -q -d COMPUTE`, `nvidia-smi`",
            "to let processes share a GPU again, as root: `nvidia-smi -c 0`",
        ),
        examples=(
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        ),
        near_misses=("RuntimeError: CUDA error: no CUDA-capable device is detected",),
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-modes",
    ),
    Signature(
        code="cuda-unavailable",
        tier=Tier.CAUSE,
        patterns=(
            r"No (?:CUDA|HIP) GPUs are available",
            r"no (?:CUDA|ROCm)-capable device is detected",
            r"^(?:\w+Error: )+(?P<line>(?:CUDA|Cuda) is not available)",
            r"No supported gpu backend found",
            r"CUDA unknown error - this may be due to an incorrectly set up environment",
            r"Failed to initialize NVML: (?!Driver/library)\w[\w ]+",
            r"could not select device driver \S+ with capabilities: \[\[gpu\]\]",
            r"nvidia-container-cli: (?P<line>initialization error: .{1,80})",
            r"CUDA(?: driver)? error(?: 3)?: (?P<line>initialization error)",
            r"cuda runtime error \(3\) : (?P<line>initialization error)",
            r"Cuda failure(?: 3)? '(?P<line>initialization error)'",
        ),
        unless=(r"UserWarning",),
        what="no usable GPU: CUDA says `{line}`",
        why="no device is visible to this process: CUDA_VISIBLE_DEVICES is empty or wrong, the container or the job "
        "has no GPU, another process holds it exclusively, or CUDA was initialised before a fork",
        fixes=(
            "look at what this process sees: `nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES`",
            "give the job or container its GPUs: `docker run --gpus all`, `srun --gpus-per-node=N`",
            _GLOO,
            DOCTOR,
        ),
        examples=(
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: No HIP GPUs are available",
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "RuntimeError: HIP error: no ROCm-capable device is detected",
            "RuntimeError: CUDA error: initialization error",
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing "
            "env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
            "Failed to initialize NVML: Unknown Error",
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open",
            "RuntimeError: cuda runtime error (3) : initialization error at /pytorch/aten/src/THC/THCGeneral.cpp:50",
            "gpu1:70:71 [0] init.cc:52 NCCL WARN Cuda failure 'initialization error'",
            "ValueError: Cuda is not available.",
            "lightning.fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
            "RuntimeError: CUDA is not available",
        ),
        near_misses=(
            "/torch/cuda/__init__.py:80: UserWarning: CUDA initialization: No CUDA GPUs are available",
            "CUDA is not available, training on the CPU",
        ),
    ),
    Signature(
        code="cuda-unavailable",
        tier=Tier.CAUSE,
        patterns=(r"Found no NVIDIA driver on your system",),
        unless=(r"UserWarning",),
        what="no NVIDIA driver on this machine or in this container",
        why="libcuda is part of the driver, not of torch; a container gets it from the NVIDIA runtime only when "
        "started with GPUs",
        fixes=(
            "start the container with its GPUs: `docker run --gpus all`, `apptainer exec --nv`",
            "on a login or CPU node: run inside a job with GPUs",
            _GLOO,
            DOCTOR,
        ),
        examples=(
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx",
        ),
        near_misses=(
            "/torch/cuda/__init__.py:107: UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/cuda/Module.cpp",
    ),
    Signature(  # what libraries and scripts say when they find no GPU
        code="cuda-unavailable",
        tier=Tier.CAUSE,
        patterns=(
            r"^(?=.*(?:GPU|CUDA))(?:[\w.]*(?:Error|Exception): )+(?P<message>.*\b(?:[Nn]o (?:CUDA |NVIDIA |GPU "
            r")?(?:GPUs?|devices?|resources)"
            r" (?:were |was )?(?:found|available|detected)|CUDA (?:is )?(?:unavailable|not available|required))\b.*)",
            r"^(?:[\w.]*(?:Error|Exception): )+(?P<message>.*(?:torch\.cuda\.)?is_available\(\) is False)",
            r"^(?:[\w.]*(?:Error|Exception): )+(?P<message>.*mixed precision requires a GPU)",
        ),
        unless=(r"ProcessGroupNCCL",),
        what="no usable GPU: `{message}`",
        why="the script or a library asks for a GPU where torch sees none: a CPU build, no driver, no device in the "
        "job or container, or an empty CUDA_VISIBLE_DEVICES",
        fixes=(DOCTOR, "give the job or container its GPUs: `docker run --gpus all`, `srun --gpus-per-node=N`", _GLOO),
        examples=(
            "RuntimeError: Unable to proceed, no GPU resources found",
            "AssertionError: CUDA unavailable, invalid device 0 requested",
            "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. "
            "If you are running on a CPU-only machine",
            "ValueError: fp16 mixed precision requires a GPU (not 'cpu').",
        ),
        near_misses=(
            "No GPU found, using the CPU",
            "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        ),
    ),
    Signature(
        code="invalid-device-ordinal",
        tier=Tier.CAUSE,
        patterns=(
            r"invalid device ordinal",
            r"GPU device may be out of range",
            r"MisconfigurationException: (?P<line>You requested gpu: .*)",
            r"^(?:AssertionError|RuntimeError|ValueError): (?P<line>Invalid (?:device id|CUDA 'device=[\d,]+'))",
        ),
        what="this rank asked for a GPU that is not visible to it (`{line}`)",
        why="more processes than visible GPUs, or the index is the global rank or nvidia-smi's instead of one "
        "among the visible",
        fixes=(
            "start one process per visible GPU: `ddplaunch run auto -- …`, or fewer: `ddplaunch run N` with N at most "
            "what `nvidia-smi -L` lists",
            "use LOCAL_RANK, not RANK: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`",
            "check `echo $CUDA_VISIBLE_DEVICES`: indices in the script count among the visible GPUs from 0",
        ),
        examples=(
            "RuntimeError: CUDA error: invalid device ordinal",
            "RuntimeError: cuda runtime error (10) : invalid device ordinal at "
            "/opt/conda/torch/csrc/cuda/Module.cpp:33",
            "THCudaCheck FAIL file=/opt/Module.cpp line=33 error=10 : invalid device ordinal",
            "GPU device may be out of range, do you have enough GPUs?",
            "AssertionError: Invalid device id",
            "lightning_fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]",
            "ValueError: Invalid CUDA 'device=0,1' requested. Use 'device=cpu' or pass valid CUDA device(s)",
        ),
        near_misses=("    torch.cuda.set_device(device_ordinal)",),
    ),
    Signature(
        code="duplicate-gpu",
        tier=Tier.CAUSE,
        patterns=(
            r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+) both on CUDA device (?P<bus>[\w:.]+)",
        ),
        what="ranks {one} and {other} use the same GPU (PCI {bus})",
        why="NCCL refuses two ranks of one communicator on one GPU: they never chose their own, or there are "
        "more ranks than GPUs",
        fixes=(
            "before `init_process_group`: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`, and "
            "`.to(local_rank)` instead of `.to('cuda:0')`",
            "start as many processes as GPUs are visible: `ddplaunch run auto -- …`",
        ),
        examples=(
            "Duplicate GPU detected : rank 5 and rank 1 both on CUDA device 45000",
            "gpu1:70214:70241 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
            "device ca000",
        ),
        near_misses=("Duplicate GPU ids in --gpus 0,0",),
        source="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    ),
    Signature(  # first of its code: what the comparison of all ranks' time-outs is told with
        code="gpu-p2p-broken",
        tier=Tier.HINT,
        patterns=(r"Watchdog caught collective operation timeout: Work\w+\(SeqNum=1, ",),
        what="the first collective never completed, on any rank",
        why="the GPUs connected but no data arrived: peer-to-peer transfers under an IOMMU or PCIe ACS, or "
        "broken GPUDirect",
        fixes=(
            "confirm with one run through host memory: `--env NCCL_P2P_DISABLE=1`, between nodes `--no-nccl-ib`",
            "pass `iommu=pt` to the kernel, or turn IOMMU and ACS off in the BIOS; `nvidia-smi topo -p2p r` "
            "shows who reaches whom",
            "if it hangs still, a rank or interface is at fault: `--nccl-debug INFO`, `--socket-ifname NAME`",
        ),
        examples=("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",),
        near_misses=("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    Signature(
        code="cudnn-error",
        tier=Tier.GENERAL,
        patterns=(
            r"(?P<line>cuDNN version incompatibility: [^.]*)",
            r"(?P<line>CUDNN_STATUS_(?:SUBLIBRARY_)?VERSION_MISMATCH)",
            r"Could not load library (?P<line>libcudnn\w*\.so\S*?)\. Error: .*(?:undefined symbol|not defined in file)",
        ),
        what="another cuDNN was loaded than the one that torch was built with: `{line}`",
        why="the loader finds libcudnn first where LD_LIBRARY_PATH, conda or the system has another version than the "
        "one that was installed with torch",
        fixes=(
            "use torch's own: `unset LD_LIBRARY_PATH`, or leave the folder out of it that holds the other libcudnn",
            "see which there are: `echo $LD_LIBRARY_PATH`, `pip list | grep -i cudnn`, `ldconfig -p | grep cudnn`",
        ),
        examples=(
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime "
            "version (8, 9, 7). PyTorch already comes bundled with cuDNN.",
            "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            "Could not load library libcudnn_ops_train.so.8. Error: /opt/cuda/lib64/libcudnn_ops_train.so.8: undefined "
            "symbol: _ZN5cudnn3ops4nameE, version libcudnn_ops_infer.so.8",
        ),
        near_misses=("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/backends/cudnn/__init__.py",
    ),
    Signature(
        code="cudnn-error",
        tier=Tier.GENERAL,
        patterns=(
            r"cuDNN(?: Frontend)? error\S* .*?(?P<line>CUDNN_STATUS_(?!ALLOC_FAILED)\w+)",
            r"Error: .*?(?P<line>CUDNN_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"CUDA error: (?P<line>CU(?:BLAS|SPARSE|SOLVER)_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"error: (?P<line>CU(?:SPARSE|SOLVER)_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"cuFFT error: (?P<line>CUFFT_\w+)",
            r"cublas runtime error : (?P<line>(?!resource allocation failed).+?) at ",
            r"Unable to find a valid cuDNN algorithm to run convolution",
            r"unable to find an engine to execute this computation|Error: (?P<line>miopenStatus(?!Success)\w+)",
        ),
        unless=(r"^\s*frame #", r"cublasCreate"),
        log_unless=(r"out of memory", r"Assertion `.*` failed", r"device-side assert triggered"),
        what="a GPU library call failed: `{line}`",
        why="cuDNN or cuBLAS rejected a call: a GPU that it does not support, an index error before it, little free "
        "memory, or another copy of the library than torch's own",
        fixes=(
            "get the true frame: `--env CUDA_LAUNCH_BLOCKING=1`",
            "try a smaller batch (`--batch-size`), then `torch.backends.cudnn.enabled = False` to tell library "
            "from script",
            "look for another copy: `echo $LD_LIBRARY_PATH; pip list | grep -i cudnn`, and unset LD_LIBRARY_PATH "
            "for torch's own",
        ),
        examples=(
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
            "RuntimeError: CUDNN_STATUS_INTERNAL_ERROR",
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`",
            "RuntimeError: cublas runtime error : the GPU program failed to execute at /opt/THCBlas.cu:259",
            "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
            "RuntimeError: GET was unable to find an engine to execute this computation",
            "RuntimeError: miopenStatusUnknownError",
            "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
            "RuntimeError: CUDA error: CUSPARSE_STATUS_INVALID_VALUE when calling `cusparseSpMM`",
            "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
        ),
        near_misses=(
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
    ),
    Signature(
        code="gpu-p2p-broken",
        tier=Tier.SYMPTOM,
        patterns=(
            r"peer access is not supported between these two devices",
            r"peer mapping resources exhausted",
            r"NCCL WARN (?P<line>(?:[Ff]ailed to open|Cuda failure .*opening) CUDA IPC handle)",
            r"(?:CUDA error|Cuda failure)\S* .*?(?P<line>peer access has not been enabled)",
            r"(?:transport/(?:nvls|p2p)|\bipc\w*)\.cc:\d+ NCCL WARN (?P<line>(?:Cuda|HIP) failure (?:1 )?'invalid "
            r"argument')",
            r"transport/nvls\.cc:\d+ NCCL WARN (?P<line>Cuda failure (?:\d+ )?'(?!out of memory|system not yet)[^']+')",
        ),
        what="GPUs cannot reach each other's memory: `{line}`",
        why="NCCL or a custom all-reduce chose peer-to-peer transport, which these GPUs, their PCIe path or the "
        "container do not have",
        fixes=(
            "go through host memory: `--env NCCL_P2P_DISABLE=1` (slower, works everywhere); if the line names nvls.cc, "
            "first `--env NCCL_NVLS_ENABLE=0`",
            "look at the topology: `nvidia-smi topo -p2p r`",
            "in containers share the IPC namespace: `docker run --ipc=host`",
        ),
        examples=(
            "z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is "
            "not supported between these two devices",
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between "
            "these two devices'",
            "CUDA failure test.cu:20 'peer mapping resources exhausted'",
            "gpu1:1:2 [0] transport/p2p.cc:301 NCCL WARN Failed to open CUDA IPC handle : 1 invalid argument",
            "RuntimeError: CUDA error: peer access has not been enabled",
            "gpu7:2338:2379 [2] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",
            "gpu7:2338:2379 [2] /rccl/hipify/src/transport/p2p.cc:219 NCCL WARN Cuda failure 'invalid argument'",
            "gpu7:2338:2379 [2] /rccl/hipify/src/transport/p2p.cc:301 NCCL WARN HIP failure 'invalid argument'",
            "gpu7:2338:2379 [2] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed in "
            "the present state'",
            "gpu7:2338:2379 [2] misc/ipcsocket.cc:77 NCCL WARN Cuda failure 1 'invalid argument'",
        ),
        near_misses=(
            "NCCL INFO P2P is disabled between connected GPUs 1 and 0.",
            "gpu7:2338:2379 [2] /rccl/hipify/src/transport/net.cc:219 NCCL WARN Cuda failure 'invalid argument'",
            "gpu7:2338:2379 [2] enqueue.cc:1402 NCCL WARN Cuda failure 1 'invalid argument'",
            "gpu7:2338:2379 [2] /rccl/hipify/src/transport/p2p.cc:646 NCCL INFO Cuda failure 'invalid argument'",
            "gpu7:2338:2379 [2] transport/p2p.cc:219 NCCL WARN Cuda failure 'invalid device ordinal'",
        ),
        source="https://github.com/ray-project/ray_lightning/issues/24",
    ),
    Signature(
        code="gpu-p2p-broken",
        tier=Tier.SYMPTOM,
        patterns=(
            r"nvidia\S* (?P<device>[0-9a-f:.]+): .*(?P<message>IO_PAGE_FAULT)",
            r"(?P<message>IO_PAGE_FAULT) device=(?P<device>[0-9a-f:.]+)",
            r"(?P<message>DMAR): .*Request device \[(?P<device>[0-9a-f:.]+)\] (?:fault|PASID)",
        ),
        what="the IOMMU refused transfers of device {device} ({message})",
        why="with the IOMMU translating or ACS on, peer-to-peer writes between GPUs never arrive, and collectives hang",
        fixes=(
            "pass `iommu=pt` to the kernel, or turn IOMMU and ACS off in the BIOS",
            "until then: `--env NCCL_P2P_DISABLE=1`",
        ),
        examples=(
            "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0xf4000000 flags=0x0030]",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0021 address=0xf4000000 flags=0x0030]",
            "DMAR: [DMA Write] Request device [3b:00.0] fault addr f8000000 [fault reason 05] PTE Write access "
            "is not set",
        ),
        near_misses=("DMAR: IOMMU enabled", "DMAR: DRHD base: 0x000000fbffc000 flags: 0x0"),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
)
