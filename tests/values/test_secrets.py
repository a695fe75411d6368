"""One detector of secrets: what must not be shown, and what must stay readable."""

from __future__ import annotations

import json
import random
import re
import shlex
import string
import time

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

# Arguments as typed, and the part that nobody may see. The tokens are made up, in their makers' formats.
A, H = "aB3dE5gH7jK9mN1pQ3sT", "0123456789abcdef"
POSITIVES = [
    ("--hf-token {}", "-X"),
    ("--hf_token={}", "hunter2"),
    ("--password {}", "/tiger/7q"),
    ("--my-apikey {}", "ab7"),
    ("FOO_KEY={}", "ab7"),
    ("--key {}", "a1b2c3"),
    ("--password {}", "1234"),
    ("--db-password '{}'", "a b;c,d"),
    ("--key {}", "a8f5f167f44f4964e6c998dee827110c"),
    ("--aws_secret_access_key {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("--auth {}", "ada:lovelace"),
    ("--env DB_PW={}", "x"),
    ("--env=WANDB_API_KEY={}", "x=y"),
    ("+trainer.logger.api_key={}", "x"),
    ("++secrets.pin={}", "4711"),
    ("https://{}@example.org/a", "lovelace1815"),
    ("postgres://ada:{}@db:5432/runs", "love@lace"),
    ("redis://:{}@cache:6379/0", "1815"),
    ("--tracker=mongodb+srv://ada:{}@cluster.example.org", "lovelace"),
    ("ada:{}@db.example.org:5432/runs", "lovelace"),
    ("'host=db user=ada password={} dbname=runs'", "lovelace"),
    ("'Server=db;User Id=ada;Password={};Database=runs'", "love&lace"),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={}", "Zm9vYmFy" * 11),
    ("""'{{"password": "{}", "lr": 1}}'""", "love, lace"),
    ("""'{{"password": {}, "lr": 1}}'""", "1815"),
    ("""'{{"db": {{"pin":"{}"}}}}'""", "1815"),
    (r"""'{{\"api_key\": \"{}\"}}'""", "lovelace"),
    ('''"{{'token': '{}'}}"''', "lovelace"),
    ("'auth: {{password: {}}}'", "lovelace"),
    ("'https://host/x?user=1&api_key={}&lr=1'", "abc"),
    ("'https://account.blob.core.windows.net/c?sv=2022&sig={}'", "aB3%2Fx"),
    ("'https://bucket.s3.amazonaws.com/o?X-Amz-Signature={}'", H * 4),
    ("https://hooks.slack.com/services/{}", "T00000000/B00000000/" + A),
    ("https://discord.com/api/webhooks/{}", "123456789/" + A),
    ("https://example.webhook.office.com/webhookb2/{}", H + "@" + H),
    ("https://api.telegram.org/bot{}/sendMessage", "123456789:" + A + "aB3dE5gH7jK9mN1"),
    ("-H 'Authorization: {}'", "Bearer " + A),
    ("-H 'X-Api-Key: {}'", "lovelace"),
    ("'Bearer {}'", A),
    ("{}", "hf_" + A),
    ("'{}'", "-----BEGIN RSA PRIVATE KEY-----\nMIIEow"),
    ("--note {}", "sk-" + A + A),
    ("--note {}", "sk-ant-api03-" + A + f"-{A}"),
    ("--note {}", "AIza" + A + A[:15]),
    ("--note {}", "AKIA" + "ABCDEFGH12345678"),
    ("--note {}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
    ("bash -c 'HF_TOKEN={} python train.py'", "hunter2"),
    ("bash -c 'python train.py --db-password {} --lr 1'", "hunter2"),
    ("//registry.example.org/:_authToken={}", "lovelace"),
    ("tokens=[{}]", "abc,def"),
]

OF_MAKERS = ("ghp_", "github_pat_", "glpat-", "sk-proj-ab-cd_ef-", "xoxb-1-", "nvapi-")
POSITIVES += [("--note {}", prefix + A) for prefix in OF_MAKERS]
NAMES = """
secret cookie passphrase pin otp api-key apiKey wandb_key hf-token dbpass smtppass
mysqlpass rootpass userpass ldappass sshpass ftppass keypass storepass ssh-pass vault-pass
registry-pass userpwd sas sas-token azure-sas sastoken shared-key storage-key access-key accessKey
secret-access-key session-key signing-key encryption-key master-key license-key api_secret app-secret auth-token
authToken bearer-token refresh-token id-token csrf-token session-token personal-access-token pat totp mfa psk jwt
dsn sentry-dsn webhook session-cookie api-keys vault-token hub-token mlflow-tracking-password openai-key
docker-password credentials service-account-key bot-token apikey secrets passwort kennwort datenbank-passwort
motdepasse mot-de-passe mdp contrasena contraseña clave senha wachtwoord haslo hasło heslo losenord lösenord
salasana sifre şifre parola jelszó adgangskode passord parol пароль токен 密码 口令 令牌 パスワード トークン 비밀번호
암호 토큰 jeton matkhau katasandi
""".split()  # noqa: SIM905
POSITIVES += [(f"--{name} {{}}", "tiger7q") for name in NAMES]
VARIABLES = """
DBPASS MYSQL_PASS MYSQL_PWD REDISCLI_AUTH DB_PASSWORT SENHA db.kennwort hfToken WANDB_API_KEY MASTER_PASSWORD apiToken
AWS_CREDENTIALS SENTRY_DSN DB_PIN HF_TOKEN MY_PW PGPASSWORD MY_TOKEN_2 TOKEN_2 db.password DB_PW
""".split()  # noqa: SIM905
POSITIVES += [(f"{name}={{}}", "tiger7q") for name in VARIABLES]
POSITIVES += [
    ("--login {}", "ada:tiger"),
    ("--user ada:{}", "tiger"),
    ("password {}", "tiger"),
    ("'machine example.org login ada password {}'", "tiger"),
    ("machine example.org login ada password {}", "tiger"),
    ("""'machine example.org login ada\n password {}'""", "tiger"),
    ("bash -c 'set password {}; python t.py'", "tiger7"),
    ("""'{{"contraseña": "{}"}}'""", "tiger"),
    ("'passwort: {}'", "tiger"),
]
MIXED = "Zq3x9Qm2LzR7vKt4WbN8pYc8fJ"
PREFIXES = """
sk_live_ rk_live_ npm_ pypi-AgEIcHlwaS5vcmc dckr_pat_ ya29. r8_ gsk_ pplx- xai- hvs. ATATT3xFfGF0 lin_api_ secret_
ntn_ glsa_ EAAC co_ figd_ sq0atp- tvly- wk_ phc_ CfDJ8 gldt- xoxp-1-2- SG.aB3.
""".split()  # noqa: SIM905
POSITIVES += [(f"--note {prefix}{{}}", MIXED) for prefix in PREFIXES]
POSITIVES += [(form, MIXED) for form in ("{}", "--x={}", "a={}", "'see {} there'", "'[\"{}\"]'", "'x: {}'", "--t=a,{}")]

#: Arguments as trainings have them. Every word stays as it is.
ORDINARY = (
    """
--lr 1e-4|--batch-size 512|--max-tokens 512|--max_tokens=4096|--num-tokens 1e9|--tokens 300B|--train-tokens 1_000_000
--eos-token </s>|--pad_token=<pad>|--mask-token [MASK]|--image-token <image>|--pad-token-id 0|--eos_token_id=50256
--tokenizer gpt2|--tokenizer-path /data/tok.json|TOKENIZERS_PARALLELISM=false|--token-dropout 0.1
--tokens-per-batch 65536|--token-mixer conv
--pin-memory true|--pin_memory=1|--no-pin-mem|PIN_MEMORY=1|data.pin_memory=True|--pinned
--sort-key name|--text-key text|--label_key=label|--image-key image_0|--key layer4|--cache-key v2|dataset.key=caption
--keys a,b,c|--monkey 3|--keyframes 12|--num-keypoints 17|--key-padding-mask|--query-key-norm true
--sort-key a1b2c|--sort-key 4711000|--passes 3|--num-pass 2|--single-pass 1|--bypass true|--compass north|--pass-through
--author ada|--authority local|--auth none|--auth-type basic|--use-auth-token True|--use_auth_token
--password-file /run/secrets/db|--token-file=token.txt|--credentials /home/ada/cred.json
GOOGLE_APPLICATION_CREDENTIALS=/k/g.json|AWS_SHARED_CREDENTIALS_FILE=/a
--private-key ~/.ssh/id_ed25519|SSH_AUTH_SOCK=/tmp/ssh-1/agent.1|--cookie-jar|--secretary ada|--secret-santa
--hf-token $HF_TOKEN|--password ${DB_PASSWORD}|--api-key|HF_TOKEN=|--token --lr
-p 0.5|-p 8|-p train.batch_size=8|-p optim.amsgrad=True|-p lr=1e-3|-p out/dir|-p 1e-3|-u|-H|-m train|-c 4
train.py|configs/gpt2_small.yaml|/data/secret/part-00001.tar|s3://bucket/tokens/part-0|gs://bucket/key/x.parquet
MASTER_ADDR=10.0.0.1|WANDB_MODE=offline|PATH=/usr/bin:/sk-tools/bin|sort_key=4711|author=4711|bypass=4711|max_tokens=4711
TOKENIZERS_PARALLELISM=4711|pin_memory=4711|PWD=4711|tokenizer=4711
https://huggingface.co/gpt2|http://proxy:3128|tcp://10.0.0.1:29500|ssh://git@github.com/a/b|git@github.com:a/b.git|file:///a@b
image:tag@sha256:0123456789abcdef|ada@example.org|node-1:29500|http://host:8080/a@b|docker.io/a/b:1.2@sha256:ab
hf_checkpoint|hf_model_checkpoint_v2|--ckpt sk-learn-pipeline-baseline|/usr/bin:/sk-tools/bin|pypi-mirror-internal
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b|20261121-143012-x7k2q9|550e8400-e29b-41d4-a716-446655440000|1e-05|-1
model.layers=[1,2,3]|{"lr": 0.1, "eos_token": "</s>", "pin_memory": true}|optimizer.lr=0.1|a=b=c|'--lr=1e-3'
loss: 0.1|key: value|--prompt "the token of the lock"|basic training|Token embeddings|epoch=3-step=100.ckpt
--lowpass 300|--npass 3|--multi-pass 2|--bypass 1|--login ada|--user 1000:1000|--user ada|--username ada|--user=10:10
meta-llama/Meta-Llama-3.1-8B-Instruct|--model Qwen2VLForConditionalGeneration7BInstruct
MixtralForCausalLM8x7BInstructV01|wikitext-103-raw-v1|c4/en.noblocklist|--has-lora true
T5ForConditionalGenerationV1B11|FullyShardedDataParallel2WithCPUOffload|resnet50v2imagenet1kfinetuned|wikitext-103-raw-v1
/data/aB3dE5gH7jK9mN1pQ3sT/part-0|runs/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b/model.pt|c4/en.noblocklist
20261121T143012Z|2026-11-21T14:30:12.123456+00:00|01ARZ3NDEKTSV4RRFFQ69G5FAV|sha256:9f86d081884c7d659a2feaa0c55ad015
0.00012207031250000001|6.103515625e-05|--sassy 1|--masses 3|--clavecin 1|--enclave a|--has-lora true|--parole-officer x
--prompt "forgot your password"|--prompt "the password is hidden"|--loginterval 10|--user-agent Mozilla/5.0
PATH=/usr/bin:/bin|PWD=/home/ada/x|NCCL_SOCKET_IFNAME==eth0|HTTP_PROXY=http://proxy:3128|LS_COLORS=*.au=00;36:*.tar=01;31
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


def test_a_secret_is_hidden_wherever_it_stands() -> None:
    for typed, secret in POSITIVES:
        words = shlex.split(typed.format(secret)) if "'" not in secret else [typed.format(secret)]
        assert secret in " ".join(words)
        hidden = hide_words(words)
        assert "***" in " ".join(hidden)
        name, equals, value = words[0].partition("=")
        if equals and name.isidentifier():
            assert is_secret(name, value) and hide_value(name, value) == hidden[0].partition("=")[2]
        for piece in re.findall(r"[\w%/-]{2,}|\b\w\b", secret):
            if piece not in typed and not piece.startswith("Bearer"):
                assert not re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", " ".join(hidden)), hidden


def test_an_ordinary_argument_stays_readable() -> None:
    for typed in ORDINARY:
        words = typed.split(" ", 1)
        assert hide_words(words) == words
        assert hide_words([typed]) == [typed]
        name, equals, value = typed.partition("=")
        if equals and name.isidentifier():
            assert not is_secret(name, value) and hide_value(name, value) == value


CLASSES = """
AdaptiveLogSoftmaxWithLoss CosineAnnealingWarmRestarts DistributedDataParallel DistributedSampler2WithShuffle
FlaxVisionEncoderDecoderModel GradientCheckpointingLayer LlamaForSequenceClassification MultiLabelSoftMarginLoss
NonDynamicallyQuantizableLinear PixArtAlphaPipelineOutput Qwen3OmniMoeForConditionalGeneration
StableDiffusionXLPipeline TransformerDecoderLayer WeightedRandomSampler Wav2Vec2ForSequenceClassification
SwinV2ForImageClassification XLMRobertaForCausalLM
""".split()  # noqa: SIM905


def test_random_tokens_are_hidden_and_names_of_classes_are_not() -> None:
    generator, letters = random.Random(20), string.ascii_letters + string.digits
    tokens = ["".join(generator.choices(letters, k=20)) for _ in range(2000)]
    assert sum(hide_text(token) != "***" for token in tokens) < 0.03 * len(tokens)
    assert [name for name in CLASSES if hide_text(name) != name] == []


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
