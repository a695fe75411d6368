"""The environment variables that decide a launch, with secrets replaced by "***"."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"

_PREFIXES = (
    *("LOCAL_", "GROUP_", "ROLE_", "MASTER_", "PET_", "TORCH", "PYTORCH_", "DDPLAUNCH_", "ACCELERATE_", "DEEPSPEED_"),
    *("NCCL_", "GLOO_", "TP_", "UCC_", "UCX_", "FI_", "OFI_", "RDMAV_", "IBV_", "MLX5_", "RCCL_", "HSA_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NVSHMEM_", "HIP_", "ROCR_", "ROCM_", "GPU_", "ZE_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "SLURM", "SBATCH_", "PMI_", "PMIX_", "OMPI_", "PALS_"),
    *("MPI_", "SM_", "KUBERNETES_", "PYXIS_", "ENROOT_", "APPTAINER_", "SINGULARITY_", "PYTHON", "CONDA_"),
    *("HF_", "TRANSFORMERS_", "WANDB_", "TOKENIZERS_", "XLA_", "TRITON_"),
)
_NAMES = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "NODE_RANK",
        "NNODES",
        "HOSTNAME",
        "SLURMD_NODENAME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PATH",
    }
    | {"VIRTUAL_ENV", "TMPDIR", "CUDA_VISIBLE_DEVICES", "USE_LIBUV", "LANG", "LC_ALL", "TERM", "CI", "container"}
)

_WORDS = re.compile(r"[^A-Z0-9]+")
_SECRET_WORDS = frozenset({"AUTH", "OAUTH", "AUTHORIZATION", "PASS", "PWD", "PASSPHRASE", "COOKIE", "DSN", "PAT"})
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CRED")
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})
_SECRET_VALUE = re.compile(
    r"://[^/\s@]+@"  # a URL with a password or a token before the host
    r"|[?&;](?:access_?key|api_?key|key|password|secret|sig|signature|token)="
    r"|(?:^|\W)(?:hf_|gh[opsur]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|ASIA|dckr_pat_|npm_|pypi-)[A-Za-z0-9_-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?:^|\W)eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"  # a JSON web token
    r"|(?:^|\W)(?:Bearer|Basic)\s+\S{8,}",
    re.IGNORECASE,
)


def is_secret(name: str, value: str) -> bool:
    """Return whether the variable looks like a secret, by the words of its name or by the shape of its value.

    TOKEN is a word of HF_TOKEN but not of TOKENIZERS_PARALLELISM. In doubt it is a secret: a hidden number
    costs a look at the shell, a printed key costs the key.
    """
    if not value:
        return False
    if name not in _WORKING_FOLDERS:
        for word in _WORDS.split(name.upper()):
            if (
                word in _SECRET_WORDS
                or word.endswith(_SECRET_ENDINGS)
                or word.removesuffix("S").endswith(_SECRET_ENDINGS)
            ):
                return True
    return _SECRET_VALUE.search(value) is not None


def redact(name: str, value: str) -> str:
    """Return ``value``, or "***" in its place if it looks like a secret."""
    return HIDDEN if is_secret(name, value) else value


def probe_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter to a launch, in order of name, secrets replaced by "***"."""
    return {
        name: redact(name, environ[name]) for name in sorted(environ) if name in _NAMES or name.startswith(_PREFIXES)
    }
