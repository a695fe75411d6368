"""Compiled code that did not build or does not fit: extensions, kernels, and the libraries that they need."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier


def _not_built(first_error: str, what: str, why: str, fix: str, example: str, near: str) -> Signature:
    """An extension of which the compiler's first error, some lines above, is known."""
    return Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"Error building extension '(?P<extension>[^']+)'",
            r"(?P<extension>ninja): build stopped",
            r"make(?:\[\d+\])?: \*\*\* \[(?:[^\]:]+:\d+: )?(?P<extension>[\w./+-]+)\] Error \d",
        ),
        log_with=(first_error,),
        what=f"an extension ({{extension}}) did not build: {what}",
        why=why,
        fixes=(fix, "build once before the launch, and remove the stale cache: `rm -rf ~/.cache/torch_extensions`"),
        examples=(example, "ninja: build stopped: subcommand failed.", "make: *** [Makefile:13: helpers_cpp] Error 1"),
        near_misses=(near,),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(  # what ranks say of others ends them in the same way
        code="aborted",
        tier=Tier.HINT,
        patterns=(r"^\s*what\(\): +(?P<line>\S.{0,160})",),
        log_unless=(r"[NHR]CCL|[Gg]loo|TCPStore|c10d|[Ww]atchdog|[Ss]ocket|terminated with exception",),
        what="C++ code raised an exception that nothing caught: {line}",
        why="Python does not see it: the C++ runtime prints it and aborts the process",
        fixes=(
            "the lines `frame #` below it name the library; update it, or leave it out, to see whether that is it",
            "if training had ended: end what runs in the background first, `dist.destroy_process_group()`",
        ),
        examples=("  what():  Trying to free a pointer not allocated here",),
        near_misses=("terminate called after throwing an instance of 'c10::Error'",),
        source="https://en.cppreference.com/w/cpp/error/terminate",
    ),
    Signature(
        code="cudnn-error",
        tier=Tier.GENERAL,
        patterns=(
            r"Could not load library (?P<cudnn>libcudnn\S+?)\. Error: (?P<line>\S+): cannot open shared object file",
        ),
        what="cuDNN could not load a library that it needs: `{line}`",
        why="`{cudnn}` looks for it as the program runs, in LD_LIBRARY_PATH and the system's folders, and then aborts",
        fixes=(
            "see where it is: `ldconfig -p | grep {line}`, `find / -name '{line}*' 2>/dev/null`; a link or "
            "LD_LIBRARY_PATH to that folder",
            "or a torch whose wheel brings its own: `pip install -U torch`",
        ),
        examples=(
            "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No",
        ),
        near_misses=("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",),
        source="https://github.com/pytorch/pytorch/issues/85773",
    ),
    Signature(
        code="aborted",
        tier=Tier.UNCERTAIN,
        patterns=(r"\*\*\* An error occurred in (?P<call>MPI_\w+)",),
        what="MPI ended the process: an error occurred in {call}",
        why="MPI aborts where a call of it fails; a part of the program calls {call}, such as mpi4py or a library that "
        "overlaps communication, and it finds the other ranks only where MPI's own launcher started them",
        fixes=(
            "start it by `mpirun` or `srun --mpi=pmix` where that part is needed, or switch that part off",
            "the lines around it name the reason: a missing PMIx, or an MPI that does not fit the launcher's",
        ),
        examples=("[gpu1:411] *** An error occurred in MPI_Init_thread",),
        near_misses=("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",),
        source="https://docs.open-mpi.org/en/main/launching-apps/pmix-and-prrte.html",
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(r"ModuleNotFoundError: No module named '(?P<module>torch|numpy|packaging|wheel|psutil)'",),
        what="pip could not build a package from its source: the build does not see `{module}`",
        why="pip builds each package in an environment of its own, which holds only what the package declares",
        fixes=(
            "install `{module}` first, then `python -m pip install --no-build-isolation PACKAGE`",
            "or take a wheel that was built for this Python, torch and CUDA from the package's release page",
        ),
        examples=("ModuleNotFoundError: No module named 'torch'",),
        near_misses=("ModuleNotFoundError: No module named 'tokenkit'",),
        log_with=(r"^\W*(?:Getting requirements to build wheel|python setup\.py egg_info) did not run successfully",),
        source="https://pip.pypa.io/en/stable/reference/build-system/",
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:(?:ImportError|OSError): |^)\S*?(?P<library>[\w.+-]+\.so[\d.]*): undefined symbol: "
            r"(?P<symbol>(?!nccl)\w{1,60})",
        ),
        what="`{library}` was built for another version of what it uses: `{symbol}` is not there",
        why="compiled code fits one version of torch and CUDA; after torch was changed, or with a wheel for another "
        "one, names that it calls are missing",
        fixes=(
            "install the build that fits what `python -c 'import torch; print(torch.__version__, torch.version.cuda)'` "
            "prints: the package's release page names torch and CUDA in the file name",
            "build it against this torch: `pip uninstall PACKAGE`, then `pip install --no-deps --no-cache-dir "
            "--no-build-isolation PACKAGE`",
            "for an extension that torch builds itself, remove the old one: `rm -rf ~/.cache/torch_extensions`",
        ),
        examples=(
            "ImportError: /opt/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
            "/opt/v/fused.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5zeros4callE",
        ),
        near_misses=(
            "ImportError: /opt/x/libtorch_cuda.so: undefined symbol: ncclCommRegister",
            "warning: a.so: undefined symbol: foo, ignored",
        ),
        unless=(r"[Ww]arning",),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"(?P<line>No working C\+\+ compiler found)",
            r"(?P<line>Failed to find C compiler)",
            r"fatal error: (?P<line>Python\.h: No such file)",
        ),
        what="kernels could not be compiled: {line}",
        why="torch.compile builds them with the C++ compiler that CXX names, else g++; Triton builds with CC and needs "
        "the headers of Python",
        fixes=(
            "install the compiler and the headers on every node: `apt install g++ python3-dev`, or name one that is "
            "there: `--env CXX=/usr/bin/g++ --env CC=/usr/bin/gcc`",
            "`--env TORCH_COMPILE_DISABLE=1` runs without compiling",
        ),
        examples=(
            "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: "
            "(None, 'g++')",
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
            "/tmp/tmpx/main.c:5:10: fatal error: Python.h: No such file or directory",
        ),
        near_misses=("fatal error: cuda.h: No such file or directory", "found a working C++ compiler"),
        source="https://github.com/pytorch/pytorch/blob/main/torch/_inductor/cpp_builder.py",
    ),
    _not_built(
        r"fatal error: (?P<header>(?!Python\.h)[\w./+-]+): No such file",
        "the compiler finds no `{header}`",
        "the library that brings this header is not installed, or not where the compiler looks",
        "install its development package on every node (`apt-file search {header}` names it), or say where it is: "
        "`extra_include_paths=[…]`, `--env CPATH=…`",
        "RuntimeError: Error building extension 'warp_ops'",
        "warp.cpp:1:10: fatal error: opencv2/core.hpp: No such file or directory",
    ),
    _not_built(
        r"sh: (?:line )?\d+: (?P<compiler>\S*(?:nvcc|hipcc|[gc]\+\+|gcc|clang\+*)(?:-\d+)?): (?:command )?not found",
        "there is no `{compiler}`",
        "the package brings sources alone, and the compiler that torch calls for them is not installed on this node",
        "install the CUDA toolkit of `python -c 'import torch; print(torch.version.cuda)'` and set CUDA_HOME, in a "
        "container by a `-devel` image; or take a wheel that is built already",
        "RuntimeError: Error building extension 'cpu_adam'",
        "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
    ),
    _not_built(
        r"(?P<problem>[\w./+-]+(?::\d+(?::\d+)?|\(\d+\)): (?:fatal )?error: .{1,120})",
        "{problem}",
        "compiler, CUDA toolkit and torch have to fit where an extension is built; this is the first error",
        "look at that line; where the CUDA toolkit is missing or another one, set CUDA_HOME to that of `python -c "
        "'import torch; print(torch.version.cuda)'`",
        "RuntimeError: Error building extension 'fused_adam'",
        'fused.cu(41): error: identifier "c10" is undefined',
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"Error building extension '[^']+'",
            r"Error compiling objects for extension",
            r"ninja: build stopped.*",
            r"Ninja is required to load C\+\+ extensions",
            r"nvcc fatal *: .*",
            r"error: command '\S*(?:nvcc|ninja)\S*' failed.*",
            r"CUDA_HOME (?:environment variable is not set|does not exist).*",
            r"The detected CUDA version \([^)]*\) mismatches the version that was used to compile",
            r"Installed CUDA version \S+ does not match the version torch was compiled with",
            r"Unable to JIT load the \S+ op",
            r"ImportError: (?P<line>\S*torch_extensions\S+: cannot open shared object file)",
            r"unsupported GNU version!.*",
            r"cannot find -l\w+",
        ),
        what="a C++/CUDA extension did not build or load: {line}",
        why="the compiler, CUDA toolkit and torch that build and load an extension have to fit; the first error above "
        "says what did not",
        fixes=(
            "read the first compiler error above this line; install the CUDA toolkit of `python -c 'import torch; "
            "print(torch.version.cuda)'` and set CUDA_HOME",
            "build once before the launch and remove the stale cache: `rm -rf ~/.cache/torch_extensions`",
            "for a prebuilt wheel, install the one that was built for this torch version",
        ),
        examples=(
            "RuntimeError: Error building extension 'fused_adam'",
            "ninja: build stopped: subcommand failed.",
            "nvcc fatal   : Unsupported gpu architecture 'compute_90'",
            "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
            "RuntimeError: Error compiling objects for extension",
            "RuntimeError: Ninja is required to load C++ extensions",
            "The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1).",
            "CUDAMismatchException: >- Installed CUDA version 11.3 does not match the version torch was compiled with "
            "11.7",
            "RuntimeError: Unable to JIT load the cpu_adam op due to it not being compatible",
            "ImportError: /home/a/.cache/torch_extensions/py310/fused_adam/fused_adam.so: cannot open shared object "
            "file: x",
            "error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!",
            "/usr/bin/ld: cannot find -lcudart",
            "error: command '/usr/local/cuda/bin/nvcc' failed with exit code 1",
        ),
        near_misses=(
            "Using /home/a/.cache/torch_extensions as PyTorch extensions root...",
            "ninja: no work to do.",
            "ImportError: /opt/x/libtorch_cuda.so: undefined symbol: ncclCommRegister",
        ),
        unless=(r"[Ww]arning|accepting this combination",),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
    ),
)
