r"""What looks like a secret in names, values and command lines, and what is written in its place.

Names say it (`--hf-token`, `DB_PASSWORD`, `"pin": …`) or values do (`hf_…`, a password in a URL, a webhook). In doubt a
value is hidden: a hidden number costs a look at the shell, a printed password costs the password. Words that trainings
use in other senses (`--eos-token`, `--pin-memory`, `--label-key`) stay readable.

Variables are recorded by an allow-list: of one that decides no launch only the name is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

Span = tuple[int, int]

#: Variables whose values are recorded, unless they look like a secret.
_PREFIXES = (
    *("LOCAL_", "GROUP_", "ROLE_", "MASTER_", "PET_", "TORCH", "PYTORCH_", "DDPLAUNCH_", "ACCELERATE_", "DEEPSPEED_"),
    *("NCCL_", "GLOO_", "TP_", "UCC_", "UCX_", "FI_", "OFI_", "RDMAV_", "IBV_", "MLX5_", "RCCL_", "HSA_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NVSHMEM_", "HIP_", "ROCR_", "ROCM_", "GPU_", "ZE_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "SLURM", "SBATCH_", "PMI_", "PMIX_", "OMPI_", "PALS_"),
    *("MPI_", "SM_", "KUBERNETES_", "PYXIS_", "ENROOT_", "APPTAINER_", "SINGULARITY_", "PYTHON", "CONDA_"),
    *("HF_", "TRANSFORMERS_", "WANDB_", "TOKENIZERS_", "XLA_", "TRITON_"),
)
# Patterns are text: re compiles one when a word first needs it, and most launches need few.
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+"
_VOCABULARY = """
RANK WORLD_SIZE NODE_RANK NNODES HOSTNAME LD_LIBRARY_PATH LD_PRELOAD PATH VIRTUAL_ENV TMPDIR USE_LIBUV LANG LC_ALL TERM
CI container;
PASSWORD PASSWD PASSPHRASE SECRET CREDENTIAL APIKEY ACCESSKEY PRIVATEKEY TOKEN;
PASSCODE PW PWD COOKIE DSN PAT OTP PSK JWT BEARER WEBHOOK AUTH OAUTH AUTHORIZATION CRED;
EOS BOS EOT PAD PADDING UNK SEP SEPARATOR CLS MASK IMAGE IMG VIDEO AUDIO SPEECH SPECIAL STOP START END BEGIN MAX MIN NUM
NUMBER N TOTAL TRAIN EVAL PER NEW EXTRA ADDED ADD PROMPT CONTEXT BATCH STEP VISUAL VISION LOGIT REGISTER LATENT CLASS
TEXT DROP KEEP FIRST LAST NEXT MULTI WORD SUB CHAR BYTE THINK TOOL PATCH QUERY OBJECT TARGET SOURCE GLOBAL MEMORY LOSS
SKIP IGNORE WARMUP SEQ SEQUENCE INPUT OUTPUT DECODER ENCODER GENERATED LANG LANGUAGE PLACEHOLDER DISTILLATION POOL
TRIGGER CONTROL VIRTUAL;
SINGLE MULTI TWO ONE NUM N FORWARD BACKWARD FIRST SECOND LOW HIGH BAND PER;
API ACCESS SECRET PRIVATE AUTH ENCRYPTION ENCRYPT SIGNING SIGN MASTER ACCOUNT SSH STORAGE SHARED CONSUMER CLIENT SERVICE
LICENSE LICENCE DEPLOY ADMIN ROOT APP SESSION HMAC AES RSA SUBSCRIPTION WANDB COMET NEPTUNE MLFLOW OPENAI ANTHROPIC AWS
AZURE GCP HF SENTRY DATADOG NGC CLEARML
"""
#: Whole names of recorded variables. Ends of a secret's name, in the singular, and whole last words of one. What stands
#: before TOKEN or PASS where these are no secrets, and before KEY where it is one whatever its value.
_VARIABLES, _ENDINGS, _LAST_WORDS, _OF_TEXT, _PASSES, _OPENING = (
    tuple(words.split()) for words in _VOCABULARY.split(";")
)
_OFTEN_IN_A_FILE = ("CREDENTIAL", "CRED", "COOKIE", "AUTH", "KEY")
_WORKING_FOLDERS = ("PWD", "OLDPWD")
_SAYS_NOTHING = (
    r"(?i)(?:true|false|yes|no|none|null|on|off|auto|default|\*\*\*)?"
    r"|\$\{?\w+(?::[?-][^}]*)?\}?|\$\(\w+\)|\{\w+\}|<\w+>|%\w+%"  # a reference to a value elsewhere
)
_AMOUNT = r"[0-9.,_]+(?:[eE][+-]?[0-9]+)?[kKmMbBgGtT]?"
_PLACE = r"(?:~|\.{0,2})/[\w./~@%-]*|[\w./~-]+\.(?:json|pem|key|crt|txt|ya?ml|toml|env|ini|cfg|pub)"
_LIKE_A_NAME = r"[A-Za-z_./-]*[0-9]{0,3}"


def names_a_secret(name: str, value: str) -> bool:
    """Return whether ``value`` is a secret because of the ``name`` that it goes by: a variable, an option or a key.

    TOKEN ends HF_TOKEN but not TOKENIZERS_PARALLELISM, and not HF_TOKEN_PATH.
    """
    words = [word.upper() for word in re.split(_HUMP, name) if word]
    while len(words) > 1 and words[-1].isdecimal():  # HF_TOKEN_2
        words.pop()
    if not words or name in _WORKING_FOLDERS or re.fullmatch(_SAYS_NOTHING, value.strip()):
        return False
    last = words[-1].removesuffix("S") if len(words[-1]) > 4 else words[-1]
    word_before = words[-2] if len(words) > 1 else ""
    if last.endswith(_OFTEN_IN_A_FILE) and re.fullmatch(_PLACE, value):
        return False
    if last.endswith("TOKEN"):
        return word_before not in _OF_TEXT and not (last != words[-1] and re.fullmatch(_AMOUNT, value))
    if last in ("PASS", "PIN"):
        return word_before not in _PASSES
    if last.endswith("KEY") and not last.endswith(_ENDINGS) and word_before not in _OPENING and not name.isupper():
        return len(value) > 5 and not re.fullmatch(_LIKE_A_NAME, value) and not re.fullmatch(_AMOUNT, value)
    return last in _LAST_WORDS or last.endswith((*_ENDINGS, "KEY"))


#: Tokens of what trainings talk to, as their makers document them.
_TOKENS = (
    r"(?s)(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9_]{16,}|github_pat_\w{16,}|gl(?:pat|dt|rt)-[\w-]{16,}|xox[abeoprs]-[\w.-]{8,}"
    r"|sk-(?:[A-Za-z]{2,8}[0-9]{0,2}-){0,2}\w{16,}[\w-]*|sk-(?:proj|ant|svcacct|admin|or)-[\w-]{20,}|nvapi-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w.+/=-]{8,}"
    r")"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY.*"
)
_LOGIN = r"://[^\s/@:\"'<>]{0,200}:((?![0-9]{1,5}[/?])[^\s\"'<>]{1,500})@"
_LOGIN_OF_ONE = r"(?i)(?:https?|wss?)://(?!git@)([^\s/@:\"'<>]{6,500})@"
_LOGIN_WITHOUT_SCHEME = (
    r"(?<![\w:/.@-])[\w.+-]{0,64}:([^\s@/:]{1,100})@(?!sha[0-9]+:)(?:[\w-]+\.[\w.-]+|localhost|[\w-]+:[0-9])"
)
_WEBHOOK = (
    r"(?i)https?://(?:hooks?\.[\w.-]{1,100}|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w.-]{0,100}webhook[\w.-]{0,100}"
    r"|api\.telegram\.org)/([^\s\"'<>]{8,500})"
)
_OF_A_QUERY = r"(?i)[?&;](?:sig|signature|key|x-amz-[\w-]+|code)=([^&#\s\"';]+)"
_HEADER = r"(?i)\b(?:authorization|cookie|x-[\w-]{0,40}(?:token|key|auth|secret))[\"']?\s{0,3}[:=]\s{0,3}([^\r\n]+)"
_BEARER = r"(?i)\bBearer\s{1,3}([\w.~+/=-]{6,})"
#: By the looks of the secret, with what a text has to contain for the pattern to be worth compiling.
_BY_LOOKS = (
    *(("://", pattern) for pattern in (_LOGIN, _LOGIN_OF_ONE, _WEBHOOK)),
    ("@", _LOGIN_WITHOUT_SCHEME),
    ("=", _OF_A_QUERY),
    ("(?i)auth|cookie|x-|bearer", _HEADER),
    ("(?i)bearer", _BEARER),
    (r"hf_|gh[opsur]_|github_pat|gl[a-z]{2}|xox|sk-|nvapi|A[KS]IA|AIza|eyJ|-----B", _TOKENS),
)
_NAME_HINTS = r"(?i)pass|pw|pin|token|secret|key|auth|cred|cookie|dsn|pat|otp|psk|jwt|bearer|webhook"
#: ``NAME=VALUE``, ``"NAME": VALUE``, ``--NAME VALUE``. The value is only looked at, because it may hold names itself. A
#: separator ends it only if another name follows, or nothing: passwords have commas in them.
_NAMED = (
    r"(?<![\w.])(?=(--?)?)-{0,2}([A-Za-z_][\w.-]{0,100})(?:\\?[\"'])?\]?(?:\s{0,3}[:=]\s{0,3}|(?(1)\s{1,3}(?!-)|(?!)))"
    r"(?=\\?\"((?:[^\"\\]|\\[^\"]){0,4096})|\\?'((?:[^'\\]|\\[^']){0,4096})|([\[{(][^\])}]{0,4096}"
    r"|(?!\s)(?:[^\s,;&`]|[,;&](?![\w.-]{0,100}[:=]|\s|$)){1,4096}))"
)
_ASSIGNMENT = r"(?s)-{0,2}\+{0,2}([A-Za-z_][\w.-]{0,100})=(.*)"


def in_text(text: str) -> list[Span]:
    """Return where secrets stand in ``text``, by their looks and by names in front of them, in order."""
    spans: list[Span] = []
    for hint, pattern in _BY_LOOKS:
        if re.search(hint, text):
            spans += (match.span(match.lastindex or 0) for match in re.finditer(pattern, text))
    if re.search(_NAME_HINTS, text):
        for match in re.finditer(_NAMED, text):
            value = match.lastindex or 0
            if names_a_secret(match[2], match[value]):
                spans.append(match.span(value))
    return _merged(spans)


def in_words(words: Sequence[str]) -> list[list[Span]]:
    """Return for each word of a command line where secrets stand in it; an option may name what the next word is."""
    spans: list[list[Span]] = []
    option = ""  # the one whose value may come next
    for word in words:
        named = len(option) > 2 and not word.startswith("--") and names_a_secret(option.lstrip("-"), word)
        spans.append([(0, len(word))] if named else _in_word(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return spans


def _in_word(word: str) -> list[Span]:
    """Return the spans of a word; the whole value is hidden in ``NAME=VALUE``, whatever separators are in it."""
    at = 0
    while at < 300 and (match := re.match(_ASSIGNMENT, word[at:])):  # --env=NAME=VALUE
        name, value = match.groups()
        at = len(word) - len(value)
        if names_a_secret(name, value):
            return [(at, len(word))]
    return in_text(word)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def _written(text: str, spans: Sequence[Span]) -> str:
    for start, end in reversed(spans):
        text = text[:start] + HIDDEN + text[end:]
    return text


def hide_text(text: str) -> str:
    """Return ``text`` with ``***`` in the place of every secret."""
    return _written(text, in_text(text))


def hide_words(words: Sequence[str]) -> list[str]:
    """Return a command line with ``***`` in the place of every secret."""
    return list(map(_written, words, in_words(words)))


def hide_value(name: str, value: str) -> str:
    """Return the value of the variable ``name`` with ``***`` in the place of what looks like a secret."""
    return HIDDEN if value and names_a_secret(name, value) else _written(value, _in_word(value))


def is_recorded(name: str) -> bool:
    """Return whether the variable ``name`` is one that decides launches, so that its value may be recorded."""
    return name in _VARIABLES or name.startswith(_PREFIXES)


def recorded_value(name: str, value: str) -> str:
    """Return what a record has as the value of the variable ``name``."""
    return hide_value(name, value) if is_recorded(name) else HIDDEN


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of the variable ``name`` is a secret or holds one."""
    return hide_value(name, value) != value


def hide_json(value: object) -> object:
    """Return a JSON value with ``***`` in the place of every secret in its texts; keys are names of what they hold."""
    if isinstance(value, str):
        return hide_text(value)
    if isinstance(value, dict):
        return {key: hide_value(key, item) if isinstance(item, str) else hide_json(item) for key, item in value.items()}
    return [hide_json(item) for item in value] if isinstance(value, list) else value
