"""Failed imports, scripts that do not parse, and extensions that do not build."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_WHY = (
    "The interpreter that runs the ranks has no such package or another version of it: a different environment, a node "
    "without it, or a package built for another version."
)
_INTERPRETER = (
    "Compare interpreters: `ddplaunch doctor` names the one that launches; torchrun prints `of binary:` "
    "with the one it used."
)
_PIP = r"^(?:#\d+ [\d.]+ )?(?:ERROR|error): "

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="module-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"^ImportError: (?P<line>attempted relative import (?:with no known parent package|beyond top-level \w+))",
        ),
        what="an import failed: {line}",
        why="a file that is started by its path belongs to no package, and `from .name import …` means its own package",
        fixes=(
            "start it as a module, from the folder that holds the package: `ddplaunch run 4 -- -m package.module`",
            "import without the dot: what lies beside the script is found by its name",
        ),
        examples=("ImportError: attempted relative import with no known parent package",),
        near_misses=("SystemError: Parent module '' not loaded, cannot perform relative import",),
        source="https://docs.python.org/3/reference/import.html#package-relative-imports",
    ),
    Signature(
        code="module-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"^ImportError: cannot import name '(?P<name>\w+)' from partially initialized module '(?P<module>[\w.]+)'"
            r" \(most likely due to a circular import\)",
        ),
        what="`{module}` has no `{name}` yet: two modules import each other",
        why="a module that is being imported has only the names above the import that it is waiting for",
        fixes=(
            "move the import in one of the two modules into the function that needs it, or `{name}` to a third one",
        ),
        examples=(
            "ImportError: cannot import name 'Data' from partially initialized module 'data' (most likely due to a "
            "circular import) (/home/ana/data.py)",
        ),
        near_misses=("ImportError: cannot import name 'Data' from 'data' (/home/ana/data.py)",),
        source="https://docs.python.org/3/faq/programming.html#what-are-the-best-practices-for-using-import-in-a-module",
    ),
    Signature(
        code="module-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"^ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' "
            r"\((?P<file>(?!.*(?:site|dist)-packages|.*/lib/python3)/[^)]+\.py)\)",
        ),
        what="`{module}` has no `{name}`: Python found `{file}`",
        why="the file has no such name: it is spelled otherwise, or the file hides a library of the same name",
        fixes=("look into `{file}`: correct the name, or rename the file if a library was meant",),
        examples=("ImportError: cannot import name 'Resnet' from 'model' (/home/ana/work/model.py)",),
        near_misses=(
            "ImportError: cannot import name 'x' from 'transformers' (/opt/venv/lib/python3.11/site-packages/"
            "transformers/__init__.py)",
        ),
        source="https://docs.python.org/3/library/exceptions.html#ImportError",
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
        code="module-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
            r"ImportError: No module named '?(?P<module>[\w.]+)'?",
            r"ModuleNotFoundError: Requirement '(?P<module>[^']+)' not met",
        ),
        what="the package `{module}` cannot be imported",
        why=_WHY,
        fixes=(
            "install what provides `{module}` into the interpreter of the ranks, on every node (`python -m pip "
            "install …`)",
            "if it is your own package: start from the directory that holds it, or `--env PYTHONPATH=$PWD`",
            _INTERPRETER,
        ),
        examples=(
            "ModuleNotFoundError: No module named 'tokenkit'",
            "ImportError: No module named apex.parallel",
            "ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met. HINT: Try running",
        ),
        near_misses=(
            "UserWarning: Failed to initialize NumPy: No module named 'numpy' (Triggered internally)",
            "/usr/bin/python3: No module named torchrun",
            "Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
        ),
        unless=(r"finding module specification", r"No module named '?torchrun"),
        log_unless=(r"A matching Triton is not available",),
        source="https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
    ),
    Signature(
        code="module-not-found",
        tier=Tier.CAUSE,
        patterns=(
            r"ImportError: (?P<line>cannot import name .*)",
            r"(?:ImportError|OSError): (?P<line>\S+: cannot open shared object file: .*)",
            r"version `[^']+' not found \(required by [^)]*\)",
            r"PackageNotFoundError: (?P<line>.+)",
            r"ImportError: (?P<line>DLL load failed.*)",
        ),
        what="an import failed: {line}",
        why=_WHY,
        fixes=(
            "install versions that belong together, in the interpreter of the ranks (`python -m pip check` names "
            "conflicts)",
            "for a missing .so: `ldd` on the file that wants it; set LD_LIBRARY_PATH with `--env` or install the "
            "package",
            _INTERPRETER,
        ),
        examples=(
            "ImportError: cannot import name '_RingState' from 'torch.distributed.tensor' (/opt/x/__init__.py)",
            "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /opt/v/lib/x.so)",
            "importlib.metadata.PackageNotFoundError: No package metadata was found for bitsandbytes",
            "ImportError: DLL load failed while importing _C: The specified module could not be found.",
        ),
        near_misses=(
            "ImportError: /home/a/.cache/torch_extensions/py310/fused_adam/fused_adam.so: cannot open shared object "
            "file: x",
            "misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
            "ImportError: /opt/x/libtorch_cuda.so: undefined symbol: ncclCommRegister",
        ),
        unless=(r"torch_extensions", r"undefined symbol"),
        source="https://docs.python.org/3/library/exceptions.html#ImportError",
    ),
    Signature(
        code="module-not-found",
        tier=Tier.GENERAL,
        patterns=(
            r"(?<!except )(?<!raise )\bImportError: (?P<line>.+)",
            r"(?:pkg_resources\.)?(?:DistributionNotFound|ContextualVersionConflict|VersionConflict): .+",
            r"RuntimeError: (?P<line>Failed to import \S+ because of the following error.*)",
        ),
        what="an import failed: {line}",
        why=_WHY,
        fixes=("install what the message asks for, in the interpreter of the ranks and on every node", _INTERPRETER),
        examples=(
            "ImportError: tokenizers>=0.14,<0.19 is required for a normal functioning of this module, but found "
            "0.19.1.",
            "pkg_resources.DistributionNotFound: The 'tqdm>=4.27' distribution was not found",
            "pkg_resources.VersionConflict: (tokenizers 0.19.1, Requirement.parse('tokenizers<0.19'))",
            "RuntimeError: Failed to import transformers.trainer because of the following error (look up to see its "
            "traceback):",
        ),
        near_misses=(
            "except ImportError: pass",
            "ImportError: /opt/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        ),
        unless=(r"torch_extensions", r"undefined symbol"),
        source="https://docs.python.org/3/library/exceptions.html#ImportError",
    ),
    Signature(
        code="syntax-error",
        tier=Tier.CAUSE,
        patterns=(r"(?:^|\s)(?P<kind>SyntaxError|IndentationError|TabError): (?P<problem>.+)",),
        what="the script does not parse: {kind}: {problem}",
        why="Python refuses the file before its first line runs, often because the interpreter is older than "
        "the syntax",
        fixes=(
            "Open the file and line that stand above the message; `python -m py_compile FILE` repeats it at once",
            "if the syntax is newer than the interpreter (`match`, `list[int]`, f-strings), launch with a newer Python",
        ),
        examples=(
            "SyntaxError: invalid syntax",
            "IndentationError: unexpected indent",
            "TabError: inconsistent use of tabs",
        ),
        near_misses=(
            "Uncaught SyntaxError in page: skipped",
            "SyntaxError: Non-UTF-8 code starting with '\\x80' in file /opt/env/bin/python on line 2",
        ),
        unless=(r"Non-UTF-8 code starting with|contain null bytes|'utf-8' codec can't decode",),
        log_unless=(r"ast\.literal_eval|File \"<unknown>\"|File \"<string>\"",),
        source="https://docs.python.org/3/library/exceptions.html#SyntaxError",
    ),
    Signature(
        code="syntax-error",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:^|\s)SyntaxError: (?P<line>source code (?:string )?cannot contain null bytes)",
            r"(?:^|\s)SyntaxError: (?P<line>(?:\(unicode error\) 'utf-8' codec can't decode|Non-UTF-8 code starting "
            r"with) .+)",
        ),
        what="a file of the program is no text of Python: {line}",
        why="a write that was lost leaves zero bytes (a full disk, a crash, a synchronisation that was cut), and "
        "Python reads UTF-8 unless the first lines say otherwise",
        fixes=(
            "restore the file, which the line of the import above names: `git checkout -- FILE`, or copy it again",
            "if it was saved in another encoding: save it as UTF-8, or `# -*- coding: latin-1 -*-` in its first line",
        ),
        examples=(
            "SyntaxError: source code cannot contain null bytes",
            "SyntaxError: (unicode error) 'utf-8' codec can't decode byte 0xe4 in position 7: invalid byte",
        ),
        near_misses=("SyntaxError: Non-UTF-8 code starting with '\\x80' in file /opt/env/bin/python on line 2",),
        unless=(r"Non-UTF-8 code starting with .* in file \S*bin/",),
        source="https://docs.python.org/3/reference/lexical_analysis.html#encoding-declarations",
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
        code="torchvision-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"RuntimeError: operator (?P<name>torchvision::\w+) does not exist",
            r"RuntimeError: Couldn't load custom C\+\+ ops\. This can happen if your PyTorch and (?P<name>torchvision)",
            r"compiled with different CUDA major versions\. .*?(?P<name>torchvision)",
        ),
        what="torchvision does not fit this torch: what is compiled in it does not load ({name})",
        why="each torchvision is built for exactly one torch, and of the same kind: CUDA, ROCm or CPU; pip took the "
        "two from different indexes, or upgraded one of them",
        fixes=(
            "install both with one command of https://pytorch.org/get-started/locally, after `python -m pip uninstall "
            "-y torch torchvision`",
            "see which are there: `python -m pip list | grep torch`, and `python -m pip check`",
        ),
        examples=(
            "RuntimeError: operator torchvision::nms does not exist",
            "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are "
            "incompatible, or if you had errors while compiling torchvision from source.",
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. "
            "PyTorch has CUDA Version=12.1 and torchvision has CUDA Version=11.8.",
        ),
        near_misses=("RuntimeError: operator aten::foo does not exist", "UserWarning: Failed to load image extension"),
        source="https://github.com/pytorch/vision/blob/main/torchvision/extension.py",
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
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(r"Error building extension '(?P<extension>[^']+)'", r"(?P<extension>ninja): build stopped"),
        log_with=(r"fatal error: (?P<header>(?!Python\.h)[\w./+-]+): No such file",),
        what="an extension ({extension}) did not build: the compiler finds no `{header}`",
        why="the library that brings this header is not installed, or not where the compiler looks",
        fixes=(
            "install its development package on every node (`apt-file search {header}` names it), or say where it is: "
            "`extra_include_paths=[…]`, `--env CPATH=…`",
            "build once before the launch, and remove the stale cache: `rm -rf ~/.cache/torch_extensions`",
        ),
        examples=("RuntimeError: Error building extension 'warp_ops'", "ninja: build stopped: subcommand failed."),
        near_misses=("warp.cpp:1:10: fatal error: opencv2/core.hpp: No such file or directory",),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.CAUSE,
        patterns=(r"Error building extension '(?P<extension>[^']+)'", r"(?P<extension>ninja): build stopped"),
        log_with=(r"(?P<problem>[\w./+-]+(?::\d+(?::\d+)?|\(\d+\)): (?:fatal )?error: .{1,120})",),
        what="an extension ({extension}) did not build: {problem}",
        why="compiler, CUDA toolkit and torch have to fit where an extension is built; this is the first error",
        fixes=(
            "look at that line; where the CUDA toolkit is missing or another one, set CUDA_HOME to that of `python -c "
            "'import torch; print(torch.version.cuda)'`",
            "build once before the launch, and remove the stale cache: `rm -rf ~/.cache/torch_extensions`",
        ),
        examples=("RuntimeError: Error building extension 'fused_adam'", "ninja: build stopped: subcommand failed."),
        near_misses=('fused.cu(41): error: identifier "c10" is undefined',),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
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
        unless=(r"[Ww]arning",),
        source="https://pytorch.org/docs/stable/cpp_extension.html",
    ),
    Signature(
        code="module-not-found",
        tier=Tier.HINT,
        patterns=(
            _PIP + r"(?P<line>No matching distribution found for .+|\S+\.whl is not a supported wheel)",
            _PIP + r"(?P<line>ResolutionImpossible|Could not open requirements file: .+)",
            r"^\W*(?P<line>No solution found when resolving dependencies)",
        ),
        what="what the program needs could not be installed: {line}",
        why="no version fits this Python, this platform and the other packages asked for, or the index is not reached",
        fixes=(
            "read what pip printed above: the versions that it found, the Python that they need, the index it asked",
            "install into the image or the environment once, rather than at each start",
        ),
        examples=(
            "ERROR: No matching distribution found for torch==2.9.9",
            "ERROR: Could not open requirements file: [Errno 2] No such file or directory: 'req.txt'",
            "#9 3.3 ERROR: fused-1.0-cp39-cp39-linux_x86_64.whl is not a supported wheel on this platform.",
            "  \u00d7 No solution found when resolving dependencies:",
        ),
        near_misses=("ERROR: pip's dependency resolver does not currently take into account all the packages",),
        log_unless=(r"^Successfully installed ",),
        source="https://pip.pypa.io/en/stable/topics/dependency-resolution/",
    ),
    Signature(
        code="extension-build-failed",
        tier=Tier.HINT,
        patterns=(
            _PIP
            + r"(?P<line>metadata-generation-failed|(?:Failed to build installable|Could not build) wheels for .+)",
        ),
        what="pip could not build a package from its source: {line}",
        why="there is no wheel of it for this Python, torch and CUDA, so pip compiles it, which the lines above ended",
        fixes=(
            "read the first error of the build above; take a wheel from the package's release page where there is one",
            "`python -m pip install --no-build-isolation PACKAGE` builds against the torch that is installed",
        ),
        examples=(
            "ERROR: Failed to build installable wheels for some pyproject.toml based projects (apex)",
            "ERROR: Could not build wheels for flash-attn, which is required to install pyproject.toml-based projects",
            "error: metadata-generation-failed",
        ),
        near_misses=("  ERROR: Failed building wheel for apex",),
        log_unless=(r"^Successfully installed ",),
        source="https://pip.pypa.io/en/stable/reference/build-system/",
    ),
)
