"""One detector of secrets: what must not be shown, and what must stay readable."""

from __future__ import annotations

import json
import random
import re
import shlex
import string
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.values.secrets import (
    hide_json,
    hide_text,
    hide_value,
    hide_words,
    is_recorded,
    is_secret,
    names_a_secret,
    recorded_value,
)
from tests.golden import sections

TEXTS = dict(sections(Path(__file__).with_name("secrets.txt")))
#: Tokens that are made up, in their makers' formats; ``<A>`` and so on stand for them in the text.
A, H, M = "aB3dE5gH7jK9mN1pQ3sT", "0123456789abcdef", "Zq3x9Qm2LzR7vKt4WbN8pYc8fJ"
POSITIVES = [
    *TEXTS["arguments as typed, with what nobody may see in ⟦⟧"].splitlines(),
    *(f"--{name} ⟦tiger7q⟧" for name in TEXTS["options that a secret stands behind"].split()),
    *(f"{name}=⟦tiger7q⟧" for name in TEXTS["variables with a secret"].split()),
    *(f"--note {first}⟦<M>⟧" for first in TEXTS["how tokens begin"].split()),
]


def test_a_secret_is_hidden_wherever_it_stands() -> None:
    for marked in POSITIVES:
        made_up = marked.replace("<A>", A).replace("<H>", H).replace("<M>", M).replace("\\n", "\n")
        before, secret, behind = re.split("[⟦⟧]", made_up)
        words = shlex.split(f"{before}{secret}{behind}")
        assert secret in " ".join(words)
        hidden = hide_words(words)
        assert "***" in " ".join(hidden)
        name, equals, value = words[0].partition("=")
        if equals and name.isidentifier():
            assert is_secret(name, value) and hide_value(name, value) == hidden[0].partition("=")[2]
        for piece in re.findall(r"[\w%/-]{2,}|\b\w\b", secret):
            if piece not in f"{before}⟦{behind}" and not piece.startswith("Bearer"):
                assert not re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", " ".join(hidden)), hidden


def test_an_ordinary_argument_stays_readable() -> None:
    for typed in TEXTS["ordinary arguments"].rstrip("\n").replace("\n", "|").split("|"):
        words = typed.split(" ", 1)
        assert hide_words(words) == words
        assert hide_words([typed]) == [typed]
        name, equals, value = typed.partition("=")
        if equals and name.isidentifier():
            assert not is_secret(name, value) and hide_value(name, value) == value


def test_random_tokens_are_hidden_and_names_of_classes_are_not() -> None:
    generator, letters = random.Random(20), string.ascii_letters + string.digits
    tokens = ["".join(generator.choices(letters, k=20)) for _ in range(2000)]
    assert sum(hide_text(token) != "***" for token in tokens) < 0.03 * len(tokens)
    assert [name for name in TEXTS["names of classes"].split() if hide_text(name) != name] == []


def test_what_is_around_a_secret_stays() -> None:
    assert hide_words(["postgres://ada:x@db/runs", "--lr", "1"]) == ["postgres://ada:***@db/runs", "--lr", "1"]
    assert hide_words(['{"password": "x", "lr": 1}']) == ['{"password": "***", "lr": 1}']
    assert hide_words(["--password", "x7", "https://h/x?token=hf_" + A + "&lr=1&pin=4711"]) == [
        "--password", "***", "https://h/x?token=***&lr=1&pin=***",
    ]  # fmt: skip
    assert hide_words(["host=db password=x dbname=runs"]) == ["host=db password=*** dbname=runs"]
    assert hide_text("train.py --api-key s3cret --lr 1") == "train.py --api-key *** --lr 1"
    assert hide_value("X", "http://user:pw@proxy:3128") == "http://user:***@proxy:3128"
    value = {"a": ["password=x7", 1, {"pin": "4711"}], "pin": "4711", "lr": None}
    assert hide_json(value) == {"a": ["password=***", 1, {"pin": "***"}], "pin": "***", "lr": None}


HOSTILE = ("://", "://a:", "password=", "a:", "keykey", 'key="', "key=[", "sk-aa-", "https://hooks.", "a=", "x-", "aB1")


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_word_as_long_as_the_kernel_allows_takes_no_minutes(piece: str) -> None:
    began = time.process_time()
    hide_words([piece * (131_071 // len(piece))])
    assert time.process_time() - began < 60


@settings(max_examples=60)
@given(st.text(alphabet="pasword-=:/@\"'{}[] ,;&?12hf_", max_size=60))
def test_what_is_hidden_stays_hidden_and_nothing_else_changes(text: str) -> None:
    hidden = hide_text(text)
    kept = ".+".join(map(re.escape, hidden.split("***")))
    assert "***" in text or re.fullmatch(kept, text, re.DOTALL)
    assert hide_text(hidden) == hidden or "***" in text
    json.dumps(hidden)


def test_values_of_variables_are_recorded_by_a_list() -> None:
    recorded = ("RANK", "NCCL_DEBUG", "DDPLAUNCH_RUN_ID", "SLURM_JOB_ID", "PYTHONPATH", "PATH", "RAY_RAYLET_PID")
    assert all(map(is_recorded, recorded)) and not any(map(is_recorded, ("EDITOR", "DB_HOST", "MY_NCCL_X")))
    assert (recorded_value("NCCL_DEBUG", "INFO"), recorded_value("EDITOR", "vi")) == ("INFO", "***")
    assert not names_a_secret("_", "x") and not names_a_secret("12", "x") and hide_value("DB_PW", "") == ""
