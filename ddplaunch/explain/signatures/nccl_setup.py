"""How NCCL that is missing, mismatched or without its plug-in shows; refuses echoes of a peer that died first."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_INFO = "see which network NCCL chose and why: `--nccl-debug INFO`"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="nccl-version-mismatch",
        role="root",
        literals=("undefined symbol: nccl", "undefined symbol: pnccl", "Symbol not found: _nccl"),
        patterns=(
            r"(?:(?P<library>lib[\w.+-]+\.so[\d.]*): )?(?:undefined symbol|Symbol not found): (?P<symbol>_?p?nccl\w+)",
        ),
        what="the libnccl that was loaded has no `{symbol}`: it is another version than this torch was built with",
        why="an older libnccl is found first: on LD_LIBRARY_PATH, in a system or conda directory, or a second "
        "nvidia-nccl wheel",
        fixes=(
            "clean the path: `unset LD_LIBRARY_PATH`, or remove the directory with the older `libnccl.so.2` from it",
            "look for two wheels: `pip list | grep -i nccl`; then `pip install --force-reinstall torch`",
            "see which one is loaded: `ldd $(python -c 'import importlib.util as u; "
            'print(u.find_spec("torch").origin[:-11])\')'
            "lib/libtorch_cuda.so | grep nccl`",
        ),
        examples=(
            "ImportError: /opt/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
            "ncclCommRegister",
            "OSError: /usr/lib/libfoo.so: undefined symbol: pncclGetVersion",
            "ImportError: dlopen(libtorch.dylib): Symbol not found: _ncclAllReduce",
        ),
        near_misses=("/usr/bin/modulecmd: symbol lookup error: /lib64/libtinfo.so.6: undefined symbol: tputs_sp",),
        priority=70,
        source="https://github.com/pytorch/pytorch/issues/119072",
    ),
    Signature(
        code="nccl-version-mismatch",
        role="root",
        literals=(
            "NCCL version mismatch",
            "Mismatched NCCL version detected",
            "NCCL versions",
        ),
        patterns=(
            r"(?P<message>Mismatched NCCL version detected.*)",
            r"(?P<message>NCCL version mismatch.*)",
            r"(?P<message>(?:different|inconsistent) NCCL versions.*)",
        ),
        what="ranks run different versions of NCCL: {message}",
        why="NCCL's wire format changes between versions; all ranks of a communicator need the same one",
        fixes=(
            "install the same torch on every node: compare `python -c 'import torch; print(torch.__version__, "
            "torch.cuda.nccl.version())'`",
            "`ddplaunch doctor --hosts A,B` compares the nodes",
        ),
        examples=(
            "init.cc:911 NCCL WARN Mismatched NCCL version detected : rank 8 version 21805 rank 0 version 22005",
            "RuntimeError: NCCL version mismatch between ranks: 2.18.5 and 2.20.5",
            "RuntimeError: nodes use different NCCL versions (2.18.5 and 2.20.5)",
        ),
        near_misses=("NCCL version 2.20.5+cuda12.4",),
        priority=68,
    ),
    Signature(
        code="nccl-unavailable",
        role="root",
        literals=(
            "no GPUs found!",
            "doesn't have NCCL built in",
            "NCCL is not available",
            "NCCL built in",
            "not compiled with NCCL",
            "module 'torch._C' has no attribute '_nccl",
        ),
        patterns=(
            r"(?P<message>ProcessGroupNCCL is only supported with GPUs, no GPUs found!)",
            r"(?P<message>Distributed package doesn't have NCCL\s*(?:built in)?)",
            r"(?P<message>NCCL is not available)",
            r"(?P<message>PyTorch (?:is|was) not compiled with NCCL support)",
            r"(?P<message>module 'torch\._C' has no attribute '_nccl\w*')",
        ),
        unless=(r"UserWarning|WARNING",),
        what="backend `nccl` was asked for where there is none: `{message}`",
        why="NCCL needs a CUDA build of torch, on Linux, and at least one visible GPU per process",
        fixes=(
            "without GPUs: `--device cpu` and `init_process_group(backend='gloo')`, best chosen by "
            "`'nccl' if torch.cuda.is_available() else 'gloo'`",
            "with GPUs: `ddplaunch doctor` shows why they are not visible (CPU wheel, driver, container, "
            "CUDA_VISIBLE_DEVICES)",
        ),
        examples=(
            "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "RuntimeError: Distributed package doesn't have NCCL built in",
            "RuntimeError: NCCL is not available",
            "RuntimeError: PyTorch is not compiled with NCCL support",
            "AttributeError: module 'torch._C' has no attribute '_nccl_all_reduce'",
        ),
        near_misses=(
            "UserWarning: PyTorch is not compiled with NCCL support",
            "ProcessGroupNCCL is only supported with CUDA tensors",
        ),
        priority=62,
    ),
    Signature(
        code="nccl-net-plugin",
        role="root",
        literals=(
            "Failed to initialize any NET plugin",
            "Error: network ",
            "NET/OFI",
            "Failed to initialize NET plugin",
            "NET/Plugin: ",
            "NCCL_NET",
        ),
        patterns=(
            r"(?P<message>Failed to initialize any NET plugin)",
            r"(?P<message>Error: network \S.*? not found)",
            r"(?P<message>Failed to initialize NET plugin \S+)",
            r"NCCL WARN (?P<message>NET/OFI (?!Request ).*(?:fail|unable|[Cc]ould ?n[o']t|[Nn]o \w+ provider|not "
            r"|Error).*)",
            r"(?:Error|WARN)\b.*(?P<message>NET/Plugin: .*(?:dlerror|failed to load|incompatible).*)",
        ),
        unless=(r"NET/Plugin: (?:Could not find|Failed to find)",),
        what="NCCL's network plug-in does not work: `{message}`",
        why="NCCL_NET, NCCL_NET_PLUGIN or the library path ask for a network that this build or machine does not "
        "have, or the "
        "plug-in found no usable adapter",
        fixes=(
            "take NCCL's own networks: `env -u NCCL_NET -u NCCL_NET_PLUGIN ddplaunch run …`",
            "if the plug-in is wanted: install it (aws-ofi-nccl, HPC-X) where LD_LIBRARY_PATH finds it; see "
            "`fi_info -p efa`",
            _INFO,
            "over TCP: `--env NCCL_NET=Socket`",
        ),
        examples=(
            "[2026-04-04 04:40:40] gpu014:55244:55244 [1] plugin/net.cc:379 NCCL WARN Failed to initialize any "
            "NET plugin",
            "ip-10-1-2-3:8101:8130 [0] net.cc:526 NCCL WARN Error: network AWS Libfabric not found.",
            "Error: network IB not found.",
            "n1:1:2 [0] net.cc:10 NCCL WARN Failed to initialize NET plugin IBext",
            "NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented",
            "NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument",
            "NCCL WARN NET/Plugin: failed to load libnccl-net.so (NCCL_NET_PLUGIN)",
        ),
        near_misses=(
            "ip-10-1-2-3:8101:8101 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal "
            "network plugin.",
            "NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
            "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error",
            "NCCL INFO NCCL_NET set by environment to AWS Libfabric.",
        ),
        priority=66,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net",
    ),
)
