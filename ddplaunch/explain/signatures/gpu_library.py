"""How a failed cuDNN or cuBLAS call and broken transport between GPUs show; refuses those that another fault caused."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(  # first of its code: what the comparison of all ranks' time-outs is told with
        code="gpu-p2p-broken",
        role="confirmation",
        literals=("Watchdog caught collective operation timeout",),
        patterns=(r"collective operation timeout: Work\w+\(SeqNum=1, ",),
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
        priority=5,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    Signature(
        code="cudnn-error",
        role="root",
        literals=(
            "CUDNN_STATUS_",
            "CUBLAS_STATUS_",
            "CUSPARSE_STATUS_",
            "CUSOLVER_STATUS_",
            "CUFFT_",
            "cublas runtime error",
            "Unable to find a valid cuDNN algorithm",
            "unable to find an engine to execute",
        ),
        patterns=(
            r"cuDNN(?: Frontend)? error\S* .*?(?P<status>CUDNN_STATUS_(?!ALLOC_FAILED)\w+)",
            r"Error: .*?(?P<status>CUDNN_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"CUDA error: (?P<status>CU(?:BLAS|SPARSE|SOLVER)_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"error: (?P<status>CU(?:SPARSE|SOLVER)_STATUS_(?!ALLOC_FAILED|SUCCESS)\w+)",
            r"cuFFT error: (?P<status>CUFFT_\w+)",
            r"cublas runtime error : (?P<status>(?!resource allocation failed).+?) at ",
            r"(?P<status>Unable to find a valid cuDNN algorithm to run convolution)",
            r"(?P<status>unable to find an engine to execute this computation)",
        ),
        unless=(r"^\s*frame #", r"cublasCreate"),
        log_unless=(r"out of memory", r"Assertion `.*` failed", r"device-side assert triggered"),
        what="a GPU library call failed: `{status}`",
        why="cuDNN or cuBLAS rejected a call: another version loaded than torch was built with, a GPU that it "
        "does not support, "
        "an index error before it, or little free memory",
        fixes=(
            "look for another copy: `echo $LD_LIBRARY_PATH; pip list | grep -i cudnn`, and unset LD_LIBRARY_PATH "
            "for torch's own",
            "get the true frame: `--env CUDA_LAUNCH_BLOCKING=1`",
            "try a smaller batch (`--batch-size`), then `torch.backends.cudnn.enabled = False` to tell library "
            "from script",
        ),
        examples=(
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
            "RuntimeError: CUDNN_STATUS_INTERNAL_ERROR",
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`",
            "RuntimeError: cublas runtime error : the GPU program failed to execute at /opt/THCBlas.cu:259",
            "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
            "RuntimeError: GET was unable to find an engine to execute this computation",
            "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
            "RuntimeError: CUDA error: CUSPARSE_STATUS_INVALID_VALUE when calling `cusparseSpMM`",
            "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
        ),
        near_misses=(
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        priority=54,
    ),
    Signature(
        code="gpu-p2p-broken",
        role="root",
        literals=(
            "peer access is not supported",
            "peer mapping resources exhausted",
            "CUDA IPC handle",
            "peer access has not been enabled",
        ),
        patterns=(
            r"(?P<message>peer access is not supported between these two devices)",
            r"(?P<message>peer mapping resources exhausted)",
            r"NCCL WARN (?P<message>(?:[Ff]ailed to open|Cuda failure .*opening) CUDA IPC handle)",
            r"(?:CUDA error|Cuda failure)\S* .*?(?P<message>peer access has not been enabled)",
        ),
        what="GPUs cannot reach each other's memory: `{message}`",
        why="NCCL or a custom all-reduce chose peer-to-peer transport, which these GPUs, their PCIe path or the "
        "container do not have",
        fixes=(
            "go through host memory: `--env NCCL_P2P_DISABLE=1` (slower, works everywhere)",
            "look at the topology: `nvidia-smi topo -p2p r`",
            "in containers share the IPC namespace: `docker run --ipc=host`",
        ),
        examples=(
            "z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer "
            "access is not "
            "supported between these two devices",
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between "
            "these two devices'",
            "CUDA failure test.cu:20 'peer mapping resources exhausted'",
            "gpu1:1:2 [0] transport/p2p.cc:301 NCCL WARN Failed to open CUDA IPC handle : 1 invalid argument",
            "RuntimeError: CUDA error: peer access has not been enabled",
        ),
        near_misses=("NCCL INFO P2P is disabled between connected GPUs 1 and 0.",),
        priority=67,
        source="https://github.com/ray-project/ray_lightning/issues/24",
    ),
    Signature(
        code="gpu-p2p-broken",
        role="root",
        literals=("IO_PAGE_FAULT", "DMAR:"),
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
        priority=55,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
)
