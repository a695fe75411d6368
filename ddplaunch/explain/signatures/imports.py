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
