r"""Recognizes secrets in names, values and command lines, and hides them.

A secret is recognized by its name (`--hf-token`, `DB_PASSWORD`, `"pin": …`) or by its looks (a password in a URL, a
webhook, random letters and digits). In doubt a value is hidden: a hidden number costs a look at the shell, a printed
password costs the password. Words with another sense in training (`--eos-token`, `--pin-memory`, `--label-key`) stay
readable; so do hexadecimal numbers, which are mostly hashes of public data.

Variables are recorded by an allow-list: of all others only the name is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

Span = tuple[int, int]

# Patterns are strings: re compiles one when it is first needed, and most launches need few.
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+"
_VOCABULARY = """
LOCAL_ GROUP_ ROLE_ MASTER_ PET_ TORCH PYTORCH_ DDPLAUNCH_ ACCELERATE_ DEEPSPEED_ NCCL_ GLOO_ TP_ UCC_ UCX_ FI_ OFI_
RDMAV_ IBV_ MLX5_ RCCL_ HSA_ CUDA_ CUBLAS_ CUDNN_ NVIDIA_ NVSHMEM_ HIP_ ROCR_ ROCM_ GPU_ ZE_ OMP_ MKL_ KMP_ GOMP_
OPENBLAS_ MALLOC_ SLURM SBATCH_ PMI_ PMIX_ OMPI_ PALS_ MPI_ SM_ KUBERNETES_ PYXIS_ ENROOT_ APPTAINER_ SINGULARITY_
PYTHON CONDA_ HF_ TRANSFORMERS_ WANDB_ TOKENIZERS_ XLA_ TRITON_;
RANK WORLD_SIZE NODE_RANK NNODES HOSTNAME LD_LIBRARY_PATH LD_PRELOAD PATH VIRTUAL_ENV TMPDIR USE_LIBUV LANG LC_ALL TERM
CI RAY_RAYLET_PID container;
PASSWORD PASSWD PWD PASSPHRASE SECRET CREDENTIAL APIKEY ACCESSKEY PRIVATEKEY TOKEN PASSWORT KENNWORT PASSORD WACHTWOORD
MOTDEPASSE LOSENORD LÖSENORD SALASANA CONTRASENA CONTRASEÑA ПАРОЛЬ ТОКЕН 密码 口令 令牌 パスワード トークン 비밀번호
암호 토큰;
PASSCODE PIN PW COOKIE DSN PAT OTP TOTP MFA PSK JWT BEARER WEBHOOK AUTH OAUTH AUTHORIZATION CRED SAS MDP
JETON CLAVE SENHA PAROLA PAROL HASLO HASŁO HESLO SIFRE ŞIFRE JELSZO JELSZÓ ADGANGSKODE MATKHAU KATASANDI;
EOS BOS EOT PAD PADDING UNK SEP SEPARATOR CLS MASK IMAGE IMG VIDEO AUDIO SPEECH SPECIAL STOP START END BEGIN MAX MIN NUM
NUMBER N TOTAL TRAIN EVAL PER NEW EXTRA ADDED ADD PROMPT CONTEXT BATCH STEP VISUAL VISION LOGIT REGISTER LATENT CLASS
TEXT DROP KEEP FIRST LAST NEXT MULTI WORD SUB CHAR BYTE THINK TOOL PATCH QUERY OBJECT TARGET SOURCE GLOBAL MEMORY LOSS
SKIP IGNORE WARMUP SEQ SEQUENCE INPUT OUTPUT DECODER ENCODER GENERATED LANG LANGUAGE PLACEHOLDER DISTILLATION POOL
TRIGGER CONTROL VIRTUAL;
SINGLE MULTI TWO ONE NUM N FORWARD BACKWARD FIRST SECOND LOW HIGH BAND PER ALL BY COM ENCOM SUR TRES OVER UNDER;
API ACCESS SECRET PRIVATE AUTH ENCRYPTION ENCRYPT SIGNING SIGN MASTER ACCOUNT SSH STORAGE SHARED CONSUMER CLIENT SERVICE
LICENSE LICENCE DEPLOY ADMIN ROOT APP SESSION HMAC AES RSA SUBSCRIPTION WANDB COMET NEPTUNE MLFLOW OPENAI ANTHROPIC AWS
AZURE GCP HF SENTRY DATADOG NGC CLEARML
"""  # noqa: RUF001
#: Of variables whose values are recorded, the beginnings of names and whole names; endings of a secret's name, in the
#: singular; last words that make a name secret; words before TOKEN and before PASS that make a name harmless; words
#: before KEY that make any value a secret.
_PREFIXES, _VARIABLES, _ENDINGS, _LAST_WORDS, _OF_TEXT, _PASSES, _OPENING = (
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
_LIKE_A_NAME = r"[A-Za-z_.,/-]*[0-9]{0,3}"


def names_a_secret(name: str, value: str) -> bool:
    """Return whether ``value`` is a secret judging by its ``name``: a variable, an option or a key.

    HF_TOKEN names a secret; TOKENIZERS_PARALLELISM and HF_TOKEN_PATH do not.
    """
    words = [word.upper() for word in re.split(_HUMP, name) if word]
    while len(words) > 1 and words[-1].isdecimal():  # HF_TOKEN_2
        words.pop()
    if not words or name in _WORKING_FOLDERS or re.fullmatch(_SAYS_NOTHING, value.strip()):
        return False
    last = words[-1].removesuffix("S") if len(words[-1]) > 3 else words[-1]
    word_before = words[-2] if len(words) > 1 else ""
    if last.endswith(_OFTEN_IN_A_FILE) and re.fullmatch(_PLACE, value):
        return False
    if last.endswith("TOKEN"):
        return word_before not in _OF_TEXT and not (last != words[-1] and re.fullmatch(_AMOUNT, value))
    if words[-1].endswith("PASS"):
        return (words[-1].removesuffix("PASS") or word_before) not in _PASSES
    if last in ("LOGIN", "USER"):
        return re.fullmatch(r"[^\s:/@]+:(?![0-9]+$)\S+", value) is not None
    if last.endswith("KEY") and not last.endswith(_ENDINGS) and word_before not in _OPENING and not name.isupper():
        return len(value) > 5 and not re.fullmatch(_LIKE_A_NAME, value) and not re.fullmatch(_AMOUNT, value)
    return last in _LAST_WORDS or "".join([*words[:-1], last]).endswith((*_ENDINGS, "KEY"))


#: Tokens that may look like words or numbers, in the formats that their issuers document.
_TOKENS = (
    r"(?s)(?<![A-Za-z0-9])(?:(?:hf_|gh[opsur]_|glpat-|sk-|nvapi-|AIza)[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w.+/=-]{8,})|-----BEGIN [A-Z ]{0,30}PRIVATE KEY.*"
)
#: Letters of both cases and digits, outside of paths. In random text, two of three characters differ in kind from the
#: next one or are letters rare in words; in names, which consist of words, fewer than half do.
_MIXED = r"(?<![A-Za-z0-9/])(?=[A-Z0-9]*[a-z])(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{20,}(?:[\w+.=-]*[\w+=])?"
_UNLIKE_WORDS = r"(?i:[jkqvwxyz])|[a-z](?![a-z])|[A-Z](?![A-Z])|[0-9](?![0-9])"
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
_AFTER_A_WORD = (
    r"(?i)\bpassw(?:or)?d\s{1,3}((?=[a-z]*[^a-z\s])\w\S*)|\b(?:login|user)\s{1,3}\S+\s{1,3}password\s{1,3}(\S+)"
)
#: Patterns by the looks of the secret; each is compiled only if the text contains the hint before it.
_BY_LOOKS = (
    *(("://", pattern) for pattern in (_LOGIN, _LOGIN_OF_ONE, _WEBHOOK)),
    ("@", _LOGIN_WITHOUT_SCHEME),
    ("=", _OF_A_QUERY),
    ("(?i)auth|cookie|x-|bearer", _HEADER),
    ("(?i)bearer", _BEARER),
    (r"hf_|gh[opsur]_|glpat|sk-|nvapi|A[KS]IA|AIza|eyJ|-----B", _TOKENS),
    ("(?i)passw", _AFTER_A_WORD),
)
_NAME_HINTS = (
    r"(?i)pass|pw|pin|token|secret|key|auth|cred|cookie|dsn|pat|otp|mfa|psk|jwt|bearer|webhook|login|user|sas|mdp|jeton"
    r"|kennw|wachtw|senord|salasana|contrase|clave|senha|parol|has[lł]o|heslo|ifre|jelsz|adgang|matkhau|katasandi|парол|токен"
    r"|[密口令パト비암토]"
)
#: ``NAME=VALUE``, ``"NAME": VALUE``, ``--NAME VALUE``. The value is matched by lookahead, because it may contain names
#: itself. A separator ends it only if another name or nothing follows: passwords may contain commas.
_NAMED = (
    r"(?<![\w.])(?=(--?)?)-{0,2}([^\W\d][\w.-]{0,100})(?:\\?[\"'])?\]?(?:\s{0,3}[:=]\s{0,3}|(?(1)\s{1,3}(?!-)|(?!)))"
    r"(?=\\?\"((?:[^\"\\]|\\[^\"]){0,4096})|\\?'((?:[^'\\]|\\[^']){0,4096})|([\[{(][^\])}]{0,4096}"
    r"|(?!\s)(?:[^\s,;&`]|[,;&](?![\w.-]{0,100}[:=]|\s|$)){1,4096}))"
)
_ASSIGNMENT = r"(?s)-{0,2}\+{0,2}([^\W\d][\w.-]{0,100})=(.*)"


def in_text(text: str) -> list[Span]:
    """Return the spans of secrets in ``text``, in order, recognized by their looks and by the names before them."""
    spans: list[Span] = []
    for hint, pattern in _BY_LOOKS:
        if re.search(hint, text):
            spans += (match.span(match.lastindex or 0) for match in re.finditer(pattern, text))
    if re.search("[A-Za-z0-9]{20}", text):
        mixed = re.finditer(_MIXED, text)
        spans += (match.span() for match in mixed if len(re.findall(_UNLIKE_WORDS, match[0])) > len(match[0]) / 2)
    if re.search(_NAME_HINTS, text):
        for match in re.finditer(_NAMED, text):
            value = match.lastindex or 0
            if names_a_secret(match[2], match[value]):
                spans.append(match.span(value))
    return _merged(spans)


def in_words(words: Sequence[str]) -> list[list[Span]]:
    """Return the spans of secrets in each word of a command line; an option may name the next word as a secret."""
    spans: list[list[Span]] = []
    option = ""  # the option whose value may come next
    for word in words:
        named = not word.startswith("--") and names_a_secret(option.lstrip("-"), word)
        spans.append([(0, len(word))] if named else _in_word(word))
        option = word if re.fullmatch("--?[^=]+|(?i:passw(?:or)?d)", word) else ""
    return spans


def _in_word(word: str) -> list[Span]:
    """Return the spans of secrets in a word; in ``NAME=VALUE`` the whole value is hidden, with any separators."""
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
    """Return ``text`` with every secret replaced by ``***``."""
    return _written(text, in_text(text))


def hide_words(words: Sequence[str]) -> list[str]:
    """Return a command line with every secret replaced by ``***``."""
    return list(map(_written, words, in_words(words)))


def hide_value(name: str, value: str) -> str:
    """Return the value of the variable ``name`` with everything that looks like a secret replaced by ``***``."""
    return HIDDEN if names_a_secret(name, value) else _written(value, _in_word(value))


def is_recorded(name: str) -> bool:
    """Return whether the variable ``name`` affects launches, so that its value may be recorded."""
    return name in _VARIABLES or name.startswith(_PREFIXES)


def recorded_value(name: str, value: str) -> str:
    """Return the value to record for the variable ``name``."""
    return hide_value(name, value) if is_recorded(name) else HIDDEN


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of the variable ``name`` is or contains a secret."""
    return hide_value(name, value) != value


def hide_json(value: object) -> object:
    """Return a JSON value with every secret in its strings replaced by ``***``; keys name their values."""
    if isinstance(value, str):
        return hide_text(value)
    if isinstance(value, dict):
        return {key: hide_value(key, item) if isinstance(item, str) else hide_json(item) for key, item in value.items()}
    return [hide_json(item) for item in value] if isinstance(value, list) else value
