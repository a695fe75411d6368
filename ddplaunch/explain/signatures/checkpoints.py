"""Checkpoints that do not fit the model or cannot be read."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_FIT_WHY = (
    "Names and shapes in the file have to equal those of the model: DDP puts `module.` before every name, and another "
    "configuration changes shapes."
)
_FIT_FIXES = (
    "Save and load the bare model: `model.module.state_dict()` and `model.module.load_state_dict(…)`, or load before "
    "wrapping in DDP.",
    'Strip the prefix of an existing file: `dict((k.removeprefix("module."), v) for k, v in sd.items())`.',
    "If sizes differ, build the model with the configuration that the checkpoint was trained with.",
)
_READ_WHY = (
    "The file is shorter than it claims or not a checkpoint: an interrupted or full-disk save, a partial "
    "copy or download."
)
_READ_FIXES = (
    "Load an older checkpoint, or copy this one again and compare: `sha256sum FILE` on both sides, on every node.",
    "Save to a temporary name and `os.replace` it, on rank 0 only, so that a crash cannot leave half a file.",
)

#: Bytes that begin no instruction of a pickle and do begin texts: 118 is `v`, 60 `<`, 123 `{` (pickletools.opcodes).
_TEXT_BYTES, _TEXT_KEYS = "(?:118|60|123|91|35)", r"(?:v|<|\{|\[|#)"
_TEXT_WHY = (
    "text stands in the file where a checkpoint should: the pointer of Git LFS (`version https://git-lfs…`), a web "
    "page that was saved under this name, or JSON"
)
_TEXT_FIXES = (
    "`head -c 200 FILE` shows what it is; `git lfs pull` fetches what a pointer of Git LFS stands for",
    "fetch the file itself again, and compare `sha256sum FILE` with its source",
)

_MISSING, _UNEXPECTED = r"Missing key\(s\) in state_dict: ", r"Unexpected key\(s\) in state_dict: "


def _keys(said: str, what: str, why: str, fix: str) -> Signature:
    return Signature(
        code="checkpoint-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"Error\(s\) in loading state_dict for (?P<model>[\w.]+)",),
        log_with=(said,),
        what=f"the checkpoint does not fit the model {{model}}: {what}",
        why=why,
        fixes=(fix, "else build the model with the configuration that the checkpoint was trained with"),
        examples=("RuntimeError: Error(s) in loading state_dict for EcgClassifier:",),
        near_misses=('Missing key(s) in state_dict: "criterion.weight".',),
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py",
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="dataset-race",
        tier=Tier.CAUSE,
        patterns=(r"PytorchStreamReader (?P<line>failed reading zip archive: .+)",),
        log_by_several=(r"^(?:rank \d+: )?(?:Processing\.\.\.$|[Ss]aving \S*processed/)",),
        what="a processed data set is not whole: {line}",
        why="several ranks process and save the same file here, so one read what another one was still writing",
        fixes=(
            "process on one rank, let the others wait: `if rank == 0: Dataset(root)`, then `dist.barrier()`, then load",
            "or process once before the launch; remove the half-written file first",
        ),
        examples=("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",),
        near_misses=("PytorchStreamReader opened processed/data.pt",),
        source="https://pytorch-geometric.readthedocs.io/en/latest/tutorial/create_dataset.html",
    ),
    Signature(
        code="checkpoint-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"Error\(s\) in loading state_dict for (?P<model>[\w.]+)",),
        log_with=(
            r"size mismatch for (?P<key>[\w.]+): copying a param with shape (?:torch\.Size\()?(?P<saved>\[[\d, ]*\])"
            r"\)? from checkpoint, the shape in current model is (?:torch\.Size\()?(?P<built>\[[\d, ]*\])",
        ),
        what="the checkpoint does not fit the model {model}: `{key}` is {saved} in the file and {built} in the model",
        why="names are found, sizes differ: the model was built with another configuration than the one that was "
        "saved (vocabulary, classes, width), or a layer was resized before it was loaded",
        fixes=(
            "build the model with the configuration that the checkpoint was trained with",
            "load first and resize then: `from_pretrained(…)` and `model.resize_token_embeddings(len(tokenizer))`",
            "begin this layer anew: `ignore_mismatched_sizes=True`, or leave `{key}` out of the dict and load with "
            "`strict=False`",
        ),
        examples=("RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:",),
        near_misses=("size mismatch for fc.weight: copying a param with shape [10, 8] from checkpoint",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py",
    ),
    _keys(
        rf"{_UNEXPECTED}\"(?P<prefix>module\.|_orig_mod\.|_forward_module\.)",
        "the names in the file begin with `{prefix}`, and those of the model do not",
        "the bare model names its weights otherwise than the wrapped or compiled one that was saved",
        "strip the prefix: `dict((k.removeprefix('{prefix}'), v) for k, v in sd.items())`",
    ),
    _keys(
        rf"{_MISSING}\"(?P<prefix>module\.|_orig_mod\.|_forward_module\.)",
        "the names of the model begin with `{prefix}`, and those in the file do not",
        "the wrapped or compiled model names its weights otherwise than the bare one that was saved",
        "load into the bare model, before it is wrapped or compiled: `model.module.load_state_dict(…)`",
    ),
    _keys(
        rf"{_MISSING}\"(?P<key>[^\"]+)\"",
        "`{key}` is in the model and not in the file",
        "the model has got a part since, or is built with another configuration than the one that was saved",
        "if it is new: `load_state_dict(…, strict=False)` lets it begin anew (Lightning: `strict_loading = False`)",
    ),
    _keys(
        rf"{_UNEXPECTED}\"(?P<key>[^\"]+)\"",
        "`{key}` is in the file and not in the model",
        "the model has lost a part since, or is built with another configuration than the one that was saved",
        "if it was taken out: `load_state_dict(…, strict=False)` leaves it (Lightning: `strict_loading = False`)",
    ),
    Signature(
        code="checkpoint-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"Error\(s\) in loading state_dict for (?P<model>[\w.]+)",),
        what="the checkpoint does not fit the model {model}",
        why=_FIT_WHY,
        fixes=_FIT_FIXES,
        examples=("RuntimeError: Error(s) in loading state_dict for DistributedDataParallel:",),
        near_misses=("Some weights of GPT2 were not initialized from the model checkpoint and are newly initialized",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py",
    ),
    Signature(
        code="checkpoint-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"Size mismatch between saved \S.{0,80} and current: \S.{0,80} for \S+",
            r"loaded state dict (?:contains a parameter group that doesn't match|has a different number of) .*",
            r"Unexpected key in checkpoint state_dict: \S+",
            r"CheckpointingException: (?P<line>Global shape mismatch for loaded .{1,80} tensor for key \S+)",
            r"(?:unexpected|missing) keys? \"?[^\"]*\"? in (?:source )?state_dict",
            r"While copying the parameter named \S+",
            r"The checkpoint being loaded used a DP world size of \d+ but the current world size is \d+",
            r"AssertionError: (?P<line>\w+ value from checkpoint \([^)]*\) is not equal to the input argument value)",
        ),
        what="the checkpoint does not fit: {line}",
        why=_FIT_WHY,
        fixes=_FIT_FIXES,
        examples=(
            "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded "
            "(torch.Size([1024, 768])) and expected ((512, 768)) tensor for key embedding.position_embeddings.weight",
            "ValueError: Size mismatch between saved torch.Size([4, 2]) and current: torch.Size([8]) for model.w",
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            "ValueError: loaded state dict has a different number of parameter groups",
            "RuntimeError: Unexpected key in checkpoint state_dict: optim.state.0.exp_avg.",
            "KeyError: 'unexpected key \"module.conv1.weight\" in state_dict'",
            "RuntimeError: While copying the parameter named fc.weight, whose dimensions in the model are "
            "torch.Size([10])",
            "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size "
            "is 4.",
            "AssertionError: num_layers value from checkpoint (24) is not equal to the input argument value (12).",
        ),
        near_misses=("unexpected keys: []", "state_dict saved to out/last.pt", "resuming from checkpoint 12"),
        source="https://github.com/pytorch/pytorch/blob/main/torch/optim/optimizer.py",
    ),
    Signature(
        code="checkpoint-mismatch",
        tier=Tier.CAUSE,
        patterns=(r"Missing key in checkpoint state_dict: (?P<key>[\w.]+\w)",),
        what="the checkpoint holds no `{key}`, which is to be loaded",
        why="torch.distributed.checkpoint loads what the state dict in memory names: the model or optimizer has grown, "
        "is named otherwise (`module.`, `_orig_mod.`), or that part was not saved",
        fixes=(
            "`FileSystemReader(FOLDER).read_metadata().state_dict_metadata` names what it holds",
            "load what is there: `dcp.load(…, planner=DefaultLoadPlanner(allow_partial_load=True))`; an optimizer "
            "that was not saved begins anew",
        ),
        examples=("RuntimeError: Missing key in checkpoint state_dict: optim.state.0.exp_avg.",),
        near_misses=("RuntimeError: Missing key(s) in state_dict: ",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/default_planner.py",
    ),
    Signature(
        code="checkpoint-mismatch",
        tier=Tier.HINT,
        patterns=(
            r"(?P<problem>(?:Missing|Unexpected) key\(s\) in state_dict): ",
            r"(?P<problem>size mismatch for [\w.]+): copying a param with shape",
        ),
        what="the checkpoint does not fit the model: {problem}",
        why=_FIT_WHY,
        fixes=_FIT_FIXES,
        examples=(
            '\tUnexpected key(s) in state_dict: "module.weight", "module.bias". ',
            "\tsize mismatch for enc.stem.weight: copying a param with shape torch.Size([32, 3]) from checkpoint",
        ),
        near_misses=("_IncompatibleKeys(missing_keys=[], unexpected_keys=[])",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py",
    ),
    Signature(
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(
            r"PytorchStreamReader failed .*",
            r"(?P<line>unexpected EOF[^.]*)\. The file might be corrupted",
            r"Error while deserializing header: \w+",
            r"Invalid magic number; corrupt file\?",
            r"storage has wrong size: expected \S+ got \S+",
            r"filename 'storages' not found",
        ),
        what="a checkpoint cannot be read: {line}",
        why=_READ_WHY,
        fixes=_READ_FIXES,
        examples=(
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "RuntimeError: PytorchStreamReader failed reading file data/16: invalid header or archive is corrupted",
            "RuntimeError: unexpected EOF, expected 170260432 more bytes. The file might be corrupted.",
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "RuntimeError: Invalid magic number; corrupt file?",
            "RuntimeError: storage has wrong size: expected 64 got 256",
            "KeyError: \"filename 'storages' not found\"",
        ),
        near_misses=("RuntimeError: PytorchStreamWriter failed writing file data/211: file write failed",),
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
    ),
    Signature(  # seeking to before the start of a file that is too short for the end of its archive
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(r"^OSError: (?P<problem>\[Errno 22\] Invalid argument)$",),
        log_with=(r"torch[\\/]serialization\.py\", line \d+, in (?:load|_open_file_like|_is_zipfile|__init__)$",),
        what="a checkpoint cannot be read: torch.load met {problem}",
        why=_READ_WHY,
        fixes=("`ls -l` shows whether the file is empty or shorter than others of the run.", *_READ_FIXES),
        examples=("OSError: [Errno 22] Invalid argument",),
        near_misses=("OSError: [Errno 22] Invalid argument: '/data/a:b.txt'",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/serialization.py",
    ),
    Signature(
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(rf"UnpicklingError: (?P<problem>invalid load key, '{_TEXT_KEYS}')",),
        what="what was to be loaded is a text and no checkpoint: {problem}",
        why=_TEXT_WHY,
        fixes=_TEXT_FIXES,
        examples=("_pickle.UnpicklingError: invalid load key, 'v'.", "UnpicklingError: invalid load key, '<'."),
        near_misses=("_pickle.UnpicklingError: invalid load key, '\\x00'.",),
        source="https://docs.python.org/3/library/pickletools.html",
    ),
    Signature(
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(r"Weights only load failed",),
        log_with=(rf"(?P<problem>Unsupported operand {_TEXT_BYTES})\b",),
        what="what torch.load was given is a text and no checkpoint: {problem}",
        why=_TEXT_WHY,
        fixes=_TEXT_FIXES,
        examples=("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so",),
        near_misses=("FutureWarning: You are using `torch.load` with `weights_only=False`",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/_weights_only_unpickler.py",
    ),
    Signature(
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(r"EOFError: (?P<problem>Ran out of input)", r"UnpicklingError: (?P<problem>(?!Weights only).+)"),
        what="a checkpoint or pickle cannot be read: {problem}",
        why=_READ_WHY,
        fixes=_READ_FIXES,
        examples=("EOFError: Ran out of input", "_pickle.UnpicklingError: invalid load key, '\\x00'."),
        near_misses=(
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
            "EOFError: Compressed file ended before the end-of-stream marker was reached",
        ),
        log_unless=(r"in spawn_main|from_parent",),
        source="https://docs.python.org/3/library/pickle.html#pickle.UnpicklingError",
    ),
    Signature(
        code="checkpoint-corrupt",
        tier=Tier.CAUSE,
        patterns=(r"Weights only load failed",),
        what="torch.load refuses the checkpoint: {line}",
        why="since torch 2.6 `weights_only=True` is the default of torch.load and allows tensors and plain containers "
        "only",
        fixes=(
            "if you trust the file: `torch.load(path, weights_only=False)`",
            "allow the classes it holds: `torch.serialization.add_safe_globals([Cls])` before loading",
        ),
        examples=("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so",),
        near_misses=("FutureWarning: You are using `torch.load` with `weights_only=False`",),
        source="https://pytorch.org/docs/stable/notes/serialization.html#torch-load-with-weights-only-true",
    ),
    Signature(  # whatever it raises: an empty file ends in a bare EOFError
        code="checkpoint-corrupt",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"torch[\\/]_weights_only_unpickler\.py\", line \d+, in load$",
            r"torch[\\/]serialization\.py\", line \d+, in _legacy_load$",
        ),
        what="a checkpoint cannot be read: torch.load failed while it unpickled the file",
        why=_READ_WHY,
        fixes=("`ls -l` shows whether the file is empty or shorter than others of the run.", *_READ_FIXES),
        examples=(
            '  File "/opt/venv/lib/python3.11/site-packages/torch/_weights_only_unpickler.py", line 513, in load',
            '  File "/opt/venv/lib/python3.9/site-packages/torch/serialization.py", line 920, in _legacy_load',
        ),
        near_misses=(
            '  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1495, in load',
            "from torch._weights_only_unpickler import load",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/_weights_only_unpickler.py",
    ),
)
