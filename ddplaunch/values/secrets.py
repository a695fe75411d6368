"""What looks like a secret in names, values and command lines, and what is written in its place.

Names say it (`--hf-token`, `DB_PASSWORD`, `"pin": …`) or values do (`hf_…`, a password in a URL, a webhook). In doubt a
value is hidden: a hidden number costs a look at the shell, a printed password costs the password. Words that trainings
use in other senses (`--eos-token`, `--pin-memory`, `--label-key`) stay readable. The formats of tokens are those that
their makers document; a test draws examples from the rules of detect-secrets, whose own code is too slow for a launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

HIDDEN = "***"

Span = tuple[int, int]

# Patterns are text: re compiles one when a word first needs it, and most launches need few.
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+"
#: Words of names, upper case. In a name that goes on, the words of ``about`` and ``place`` say that something about the
#: secret is meant, such as how long it may be or where it lies. The other lists are what stands in front.
_VOCABULARY = """
secret: PASSWORD PASSWD PASSPHRASE PASSCODE PW PWD SECRET COOKIE DSN PAT OTP PSK JWT BEARER WEBHOOK AUTH OAUTH
secret: AUTHORIZATION CREDENTIAL CRED APIKEY
about: LENGTH LEN SIZE COUNT LIMIT TTL EXPIRY TIMEOUT PROVIDER BACKEND HEADER FORMAT PREFIX SUFFIX WEIGHT LOSS RATIO
about: RATE DIM INDEX IDX IDS ID POLICY PLUGIN
place: FILE PATH DIR FOLDER NAME TYPE METHOD MODE COLUMN FIELD
text token: EOS BOS EOT PAD PADDING UNK SEP SEPARATOR CLS MASK IMAGE IMG VIDEO AUDIO SPEECH SPECIAL STOP START END BEGIN
text token: MAX MIN NUM NUMBER N TOTAL TRAIN EVAL PER NEW EXTRA ADDED ADD PROMPT CONTEXT BATCH STEP VISUAL VISION LOGIT
text token: REGISTER LATENT CLASS TEXT DROP KEEP FIRST LAST NEXT MULTI WORD SUB CHAR BYTE THINK TOOL PATCH QUERY OBJECT
text token: TARGET SOURCE GLOBAL MEMORY LOSS SKIP IGNORE WARMUP SEQ SEQUENCE INPUT OUTPUT DECODER ENCODER GENERATED LANG
text token: LANGUAGE PLACEHOLDER DISTILLATION POOL TRIGGER CONTROL VIRTUAL
no pass: SINGLE MULTI TWO ONE NUM N FORWARD BACKWARD FIRST SECOND LOW HIGH BAND PER
opening key: API ACCESS SECRET PRIVATE AUTH ENCRYPTION ENCRYPT SIGNING SIGN MASTER ACCOUNT SSH STORAGE SHARED CONSUMER
opening key: CLIENT SERVICE LICENSE LICENCE DEPLOY ADMIN ROOT APP SESSION HMAC AES RSA SUBSCRIPTION WANDB COMET NEPTUNE
opening key: MLFLOW OPENAI ANTHROPIC AWS AZURE GCP HF SENTRY DATADOG NGC CLEARML
switch: USE NO WITH WITHOUT ASK REQUIRE ENABLE DISABLE HAS IS SKIP ALLOW VERIFY
"""


def _words_of(kind: str) -> frozenset[str]:
    lines = (line.partition(": ") for line in _VOCABULARY.splitlines())
    return frozenset(word for name, _, words in lines if name == kind for word in words.split())


_STRONG, _ABOUT, _PLACES, _OF_TEXT = map(_words_of, ("secret", "about", "place", "text token"))
_NO_PASS, _OPENING, _SWITCHES = map(_words_of, ("no pass", "opening key", "switch"))
_STRONG_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIAL", "APIKEY", "ACCESSKEY", "PRIVATEKEY")
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})
_SAYS_NOTHING = frozenset({"", "true", "false", "yes", "no", "none", "null", "on", "off", "auto", "default", HIDDEN})
_REFERENCE = r"\$\{?\w+(?::[?-][^}]*)?\}?|\$\(\w+\)|\{\w+\}|<\w+>|%\w+%"
_AMOUNT = r"[0-9.,_]+(?:[eE][+-]?[0-9]+)?[kKmMbBgGtT]?"
_PLACE = r"(?:~|\.{0,2})/[\w./~@%-]*|[\w./~-]+\.(?:json|pem|key|crt|txt|ya?ml|toml|env|ini|cfg|pub)"
_LIKE_A_NAME = r"[A-Za-z_./-]*[0-9]{0,3}"


def names_a_secret(name: str, value: str) -> bool:
    """Return whether ``value`` is a secret because of the ``name`` that it goes by: a variable, an option or a key.

    TOKEN is a word of HF_TOKEN but not of TOKENIZERS_PARALLELISM.
    """
    if name in _WORKING_FOLDERS or value.strip().lower() in _SAYS_NOTHING or re.fullmatch(_REFERENCE, value):
        return False
    words = [word.upper() for word in re.split(_HUMP, name) if word]
    if not words:
        return False
    last = words[-1]
    while len(words) > 1 and last.isdecimal():  # HF_TOKEN_2
        words.pop()
        last = words[-1]
    looks_random = not re.fullmatch(_LIKE_A_NAME, value)
    if len(words) > 1 and last in _PLACES:
        return False
    strength = _strength(words[:-1] if len(words) > 1 and last in _ABOUT else words, name, value)
    if len(words) > 1 and last in _ABOUT:
        return strength == 2 and len(value) > 7 and looks_random
    if words[0] in _SWITCHES:
        strength = min(strength, 1)
    return strength == 2 or (strength == 1 and len(value) > 5 and looks_random and not re.fullmatch(_AMOUNT, value))


def _strength(words: Sequence[str], name: str, value: str) -> int:
    """Return 2 if the words name a secret, 1 if it depends on the looks of the value, 0 if they do not."""
    strength, before = 0, ""
    for i, word in enumerate(words):
        single = word.removesuffix("S") if len(word) > 4 else word
        if single.endswith("TOKEN"):
            found = _of_token(words[:i], plural=single != word, value=value)
            found = found if i == len(words) - 1 or name.isupper() else min(found, 1)  # --token-mixer conv
        elif single in _STRONG or single.endswith(_STRONG_ENDINGS):
            found = 0 if single in ("CREDENTIAL", "CRED", "COOKIE", "AUTH") and re.fullmatch(_PLACE, value) else 2
        elif single.endswith("KEY"):
            found = 0 if re.fullmatch(_PLACE, value) else 2 if before in _OPENING or name.isupper() else 1
        elif i == len(words) - 1 and word in ("PASS", "PIN"):
            found = 0 if before in _NO_PASS else 2
        else:
            found = 0
        strength, before = max(strength, found), word
    return strength


def _of_token(before: Sequence[str], *, plural: bool, value: str) -> int:
    if (before and before[-1] in _OF_TEXT) or (plural and re.fullmatch(_AMOUNT, value)):
        return 0
    return 2


_TOKENS = (
    r"(?s)(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9_]{16,}|github_pat_\w{16,}"
    r"|gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct)-[\w-]{16,}|GR1348941[\w-]{16,}"
    r"|sk-(?:[A-Za-z]{2,8}[0-9]{0,2}-){0,2}\w{16,}[\w-]*|sk-(?:proj|ant|svcacct|admin|or)-[\w-]{20,}|sk-[\w-]{0,100}T3BlbkFJ\w+"
    r"|[rsp]k_(?:live|test)_[A-Za-z0-9]{12,}|(?i:xox[abeoprs])-[\w.-]{8,}|xapp-[\w-]{12,}"
    r"|(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
    r"|dckr_pat_[\w-]{12,}|npm_[A-Za-z0-9]{20,}|pypi-Ag[\w-]{16,}|SG\.[\w-]{16,80}\.[\w-]{16,}|AKC[A-Za-z0-9]{10,}|AP[0-9A-F][A-Za-z0-9]{12,}"
    r"|nvapi-[\w-]{16,}|r8_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|sq0(?:csp|atp)-[\w\\-]{20,}|dop_v1_[0-9a-f]{32,}"
    r"|shp(?:at|ss|ca|pa)_[0-9a-fA-F]{32}|glsa_\w{20,}|hv[sb]\.[\w-]{20,}|dapi[0-9a-f]{32}|tskey-[\w-]{12,}"
    r"|(?:AC|SK)[a-z0-9]{32}(?![A-Za-z0-9])|[0-9a-z]{32}-us[0-9]{1,2}|key-[0-9a-f]{32}|[0-9]{8,10}:[\w-]{35}"
    r"|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27}|eyJ[\w.+/=-]{8,}|AGE-SECRET-KEY-[0-9A-Z]{20,}"
    r")"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY.*|PuTTY-User-Key-File-[0-9].*"
)
#: What no text without a token has; the expression above is worth compiling for the others only.
_TOKEN_HINTS = (
    r"hf_|api_org_|gh[opsur]_|github_pat|gl[a-z]{2,5}-|GR13|sk-|[rsp]k_|[xX][oO][xX]|xapp|A[KSBC]I?[AC]|A3T|AIza|ya29|dckr|npm_"
    r"|pypi-A|PuTTY|AP[0-9A-F]|SG\.|nvapi|r8_|gsk_|sq0|dop_|shp|glsa|hv[sb]\.|dapi|tskey|-us[0-9]|key-|[0-9]{8}:|eyJ|AGE-|-----B"
    r"|AC[a-z0-9]{8}|SK[a-z0-9]{8}|[MNO][\w-]{22}"
)
_LOGIN = r"://([^\s/@:\"'<>]{0,200}):((?![0-9]{1,5}[/?])[^\s\"'<>]{1,500})@"
_LOGIN_OF_ONE = r"(?i)(https?|wss?)://([^\s/@:\"'<>]{6,500})@"
_LOGIN_WITHOUT_SCHEME = (
    r"(?<![\w:/.@-])[\w.+-]{0,64}:([^\s@/:]{1,100})@(?!sha[0-9]+:)(?:[\w-]+\.[\w.-]+|localhost|[\w-]+:[0-9])"
)
_WEBHOOK = (
    r"(?i)https?://(?:hooks?\.[\w.-]{1,100}|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w.-]{0,100}webhook[\w.-]{0,100}"
    r"|outlook\.office\.com/webhook)/([^\s\"'<>]{8,500})|api\.telegram\.org/bot([^\s/\"']{8,100})"
)
_HEADER = r"(?i)\b(?:authorization|cookie|x-[\w-]{0,40}(?:token|key|auth|secret))[\"']?\s{0,3}[:=]\s{0,3}([^\r\n]+)"
_BEARER = r"(?i)\b(?:Bearer)\s{1,3}([\w.~+/=-]{6,})"
_OF_A_QUERY = r"(?i)[?&;](?:sig|signature|key|x-amz-[\w-]+|code)=([^&#\s\"';]+)"
_NAMED = r"(?<![\w.])([A-Za-z_][\w.-]{0,100})(?:\\?[\"'])?\]?\s{0,3}[:=]\s{0,3}"
#: A separator ends a value only if another name follows it, or nothing: passwords have commas in them.
_VALUE = (
    r"\\?\"(?:[^\"\\]|\\[^\"])*|\\?'(?:[^'\\]|\\[^'])*|[\[{(][^\])}]*"
    r"|(?!\s)(?:[^\s,;&]|[,;&](?![\w.-]{0,100}[:=]|\s|$))+"
)
_JUDGED = 500  # characters of a value
_OPTION = r"(?<!\S)--?([A-Za-z][\w.-]{0,100})\s{1,3}(\"[^\"]*\"?|'[^']*'?|(?!-)[^\s,`]+)"
_SHELL = (
    r"\b(?:sshpass|mysql|mysqldump)\s(?:[^|;&]{0,80}?\s)?-p\s?([^\s;|&]+)"
    r"|\bcurl\s[^|;]{0,200}?(?:-u|--user)\s[^\s:]{0,100}:(\S+)"
)
_NAME_HINTS = r"(?i)pass|pw|pin|token|secret|key|auth|cred|cookie|dsn|pat|otp|psk|jwt|bearer|webhook|curl"
_ASSIGNMENT = r"(?s)-{0,2}\+{0,2}([A-Za-z_][\w.-]{0,100})=(.*)"
_SHORT_NUMBER = r"[0-9]{1,3}|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9](?:\.[0-9]+)?[eE][+-]?[0-9]+"


def in_text(text: str) -> list[Span]:
    """Return where secrets stand in ``text``, by their looks and by names in front of them, in order."""
    found: list[Span] = []
    if "://" in text:
        for pattern, group in ((_LOGIN, 2), (_WEBHOOK, 0)):
            found += (_span(match, group) for match in re.finditer(pattern, text))
        found += (match.span(2) for match in re.finditer(_LOGIN_OF_ONE, text) if match[2].lower() != "git")
    elif "@" in text:
        found += (match.span(1) for match in re.finditer(_LOGIN_WITHOUT_SCHEME, text))
    if re.search(_TOKEN_HINTS, text):
        found += (match.span() for match in re.finditer(_TOKENS, text))
    found += (match.span(1) for match in re.finditer(_OF_A_QUERY, text)) if "=" in text else ()
    if re.search(_NAME_HINTS, text):
        found += _by_their_names(text)
    return _merged(found)


def _span(match: re.Match[str], group: int) -> Span:
    return match.span(group or match.lastindex or 0)


def _by_their_names(text: str) -> Iterator[Span]:
    for pattern in (_HEADER, _BEARER, _SHELL):
        yield from (_span(match, 0) for match in re.finditer(pattern, text))
    at, named, of_value = 0, re.compile(_NAMED), re.compile(_VALUE)
    while (match := named.search(text, at)) is not None:
        at = match.end(1)  # the value may hold names itself
        if not re.search(_NAME_HINTS, match[1]):
            continue
        value = of_value.match(text, match.end(), match.end() + _JUDGED)
        if value is not None and names_a_secret(match[1], text[slice(*_inside_quotes(text, *value.span()))]):
            value = of_value.match(text, match.end()) or value
            yield _inside_quotes(text, *value.span())
            at = value.end()
    for option in re.finditer(_OPTION, text):
        start, end = _inside_quotes(text, *option.span(2))
        if names_a_secret(option[1], text[start:end]):
            yield start, end


def _inside_quotes(text: str, start: int, end: int) -> Span:
    if text.startswith("\\", start):
        start += 1
    quote = text[start : start + 1]
    if quote in ("'", '"'):
        start += 1
        end -= end > start and text[end - 1] == quote
    return start, end


def in_words(words: Sequence[str]) -> list[list[Span]]:
    """Return for each word of a command line where secrets stand in it; an option may name what the next word is."""
    found: list[list[Span]] = []
    option = ""  # the one whose value may come next
    for word in words:
        if option and not word.startswith("--") and _is_value_of(option, word):
            at = word.find(":") + 1 if option in ("-u", "--user") else 0
            found.append([(at, len(word))])
        else:
            found.append(_in_word(word))
        option = word if word.startswith("-") and "=" not in word and len(word) > 1 else ""
    return found


def _is_value_of(option: str, word: str) -> bool:
    if option == "-p":
        key, _, value = word.partition("=")  # `-p train.batch_size=8`: parameters of the script
        if value and re.fullmatch(r"[A-Za-z_][\w.]*", key) and not names_a_secret(key, value):
            word = value
        place = "/" in word and (re.fullmatch(_PLACE, word) or re.fullmatch(_LIKE_A_NAME, word))
        return not (place or re.fullmatch(_SHORT_NUMBER, word) or word.lower() in _SAYS_NOTHING)
    if option in ("-u", "--user"):
        return ":" in word and "://" not in word and not word.endswith(":")
    return len(option) > 2 and names_a_secret(option.lstrip("-"), word)


def _in_word(word: str) -> list[Span]:
    """Return the spans of a word; the whole value is hidden in ``NAME=VALUE``, whatever separators are in it."""
    at = 0
    while at < 300 and (match := re.match(_ASSIGNMENT, word[at:])):  # --env=NAME=VALUE
        name, value = match.groups()
        at = len(word) - len(value)
        if names_a_secret(name, value):
            return [(at, len(word))]
    return in_text(word)


def in_value(name: str, value: str) -> list[Span]:
    """Return where secrets stand in the value of the variable ``name``."""
    if not value:
        return []
    return [(0, len(value))] if names_a_secret(name, value) else _in_word(value)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _written(text: str, spans: Sequence[Span], note: Callable[[str], object] | None = None) -> str:
    """Return ``text`` with ``***`` for every span; ``note`` is told each secret."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], HIDDEN]
        at = end
        if note is not None:
            note(text[start:end])
    return "".join([*parts, text[at:]])


def hide_text(text: str, note: Callable[[str], object] | None = None) -> str:
    """Return ``text`` with ``***`` in the place of every secret; ``note`` is told each of them."""
    return _written(text, in_text(text), note)


def hide_words(words: Sequence[str], note: Callable[[str], object] | None = None) -> list[str]:
    """Return a command line with ``***`` in the place of every secret; ``note`` is told each of them, in order."""
    return [_written(word, spans, note) for word, spans in zip(words, in_words(words), strict=True)]


def hide_value(name: str, value: str) -> str:
    """Return the value of the variable ``name`` with ``***`` in the place of what looks like a secret."""
    return _written(value, in_value(name, value))


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of the variable ``name`` is a secret or holds one."""
    return bool(in_value(name, value))


def hide_json(value: object) -> object:
    """Return a JSON value with ``***`` in the place of every secret in its texts; keys are names of what they hold."""
    if isinstance(value, str):
        return hide_text(value)
    if isinstance(value, dict):
        return {key: hide_value(key, each) if isinstance(each, str) else hide_json(each) for key, each in value.items()}
    return [hide_json(each) for each in value] if isinstance(value, list) else value
