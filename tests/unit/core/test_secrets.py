"""Nothing that looks like a secret gets through, and nothing else is touched."""

from __future__ import annotations

import logging
import shlex
import string
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.console.logs import mask_records
from llm_perf_opt.core.secrets import (
    MASK,
    has_secret,
    is_secret_name,
    is_secret_variable,
    mask_arguments,
    mask_layout,
    mask_text,
    mask_tree,
    secret_texts,
)

WORD = st.text(string.ascii_letters + string.digits, min_size=9, max_size=40).map(lambda text: f"q9Z{text}")
"""No number, no ``none``: something a user may have chosen as a password."""
SHAPED = st.one_of(
    WORD.map(lambda text: f"hf_{text}"),
    WORD.map(lambda text: f"sk-proj-{text}{text}"),
    WORD.map(lambda text: f"ghp_{text}{text}"),
    WORD.map(lambda text: f"glpat-{text}{text}"),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda text: f"AKIA{text}"),
    WORD.map(lambda text: f"eyJ{text}.{text}.{text}"),
    WORD.map(lambda text: f"-----BEGIN RSA PRIVATE KEY-----\n{text}\n-----END RSA PRIVATE KEY-----"),
)
NAMES = ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "api_key", "apiKey", "api-key", "access-token", "token", "password", "PGPASSWORD", "db_pass", "client_secret", "credentials", "Authorization", "passphrase", "GITHUB_PAT", "private_key"]  # fmt: skip
ORDINARY = ["pad_token", "eos_token", "max_new_tokens", "max-tokens", "tokenizer", "TOKENIZERS_PARALLELISM", "key", "keys", "key_value", "token_ids", "PATH", "PWD", "OLDPWD", "SSH_AUTH_SOCK", "ms_per_token", "model.path", "monkey", "keyboard", "pattern", "path", "author", "passes", "compass_dir"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_name(f"--{name}")
    assert is_secret_name(f"pipeline.workload.env.{name}")


@pytest.mark.parametrize("name", ORDINARY)
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["CUDA_KEY", "NVIDIA_TOKEN", "LC_KEY", "TORCH_KEYS"])
def test_a_variable_is_withheld_on_less_suspicion_than_a_text_is_masked(name: str) -> None:
    assert is_secret_variable(name, "x")
    assert is_secret_variable("http_proxy", "http://me:pw@proxy:80")
    assert not is_secret_variable("http_proxy", "http://proxy:80")


@given(secret=SHAPED, before=st.text(max_size=20), after=st.text(max_size=20))
def test_shapes_are_masked_wherever_they_are(secret: str, before: str, after: str) -> None:
    text = f"{before} {secret} {after}"
    assert secret not in mask_text(text)
    assert has_secret(text)


@given(name=st.sampled_from(NAMES), secret=WORD, sign=st.sampled_from(["=", ": ", ":", " = "]))
def test_values_after_names_are_masked(name: str, secret: str, sign: str) -> None:
    for text in (
        f"x {name}{sign}{secret} y",
        f"{{'{name}': '{secret} {secret}', 'n': 3}}",
        f'{{"{name}": "{secret}"}}',
        f"--{name} {secret} --n 3",
        f"pipeline.workload.command=[python,x.py,--{name},{secret},--n,3]",
        f"'--{name}={secret} {secret}' --n 3",
    ):
        assert secret not in mask_text(text), text


@given(name=st.sampled_from(NAMES), secret=WORD)
def test_arguments_and_trees(name: str, secret: str) -> None:
    spaced = f"{secret} and {secret}"
    for argv in ([f"--{name}", spaced], [f"--{name}={spaced}"], [f"+env.{name}={spaced}"]):
        masked = mask_arguments(["python", *argv, "--n", "3"])
        assert secret not in " ".join(masked)
        assert masked[0] == "python"
        assert masked[-2:] == ["--n", "3"]
    tree = {"a": [{"b": {name: spaced}}], "command": ["p", f"--{name}", spaced], "n": 3, "none": None}
    assert secret not in repr(mask_tree(tree))
    assert mask_tree(tree)["n"] == 3


@given(user=st.text("xyz019", min_size=1), secret=WORD, host=st.text("xyz019", min_size=1))
def test_passwords_of_urls(user: str, secret: str, host: str) -> None:
    assert mask_text(f"see https://{user}:{secret}@{host}/x") == f"see https://{user}:{MASK}@{host}/x"


@given(st.text())
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "infer.max_new_tokens=4",
        "the token was refused",
        "time per token: 5 ms",
        "--eos-token </s> --n 3",
        "a sk-learn model",
        "void attention<key, value>(float*)",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32",
        "secret: none",
        "key=value",
        "http://host:8080/path@x",
        "python -m pytest tests/unit --maxfail 3",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert mask_text(text) == text
    assert mask_arguments(text.split()) == text.split()


@pytest.mark.parametrize(
    "text", ["a" * 10**6, "token " * 10**5, "token:" * 10**5, "://a:" * 10**5, "'token" * 10**5]
)
def test_long_texts_take_no_longer_than_their_length(text: str) -> None:
    began = time.process_time()
    mask_text(text)
    assert time.process_time() - began < 30


SECRET = "q9ZverySecretValue77"
REQUESTS = [
    ["curl", "-u", f"me:{SECRET}", "https://h/x"],
    ["/usr/bin/curl", f"-ume:{SECRET}", "https://h/x"],
    ["curl", f"--user=me:{SECRET}"],
    ["curl", "--user", f"me:{SECRET}"],
    ["curl", "--proxy-user", f"me:{SECRET}"],
    ["curl", "-H", f"Authorization: Bearer {SECRET}", "x"],
    ["curl", "-H", f"Authorization: Token {SECRET}"],
    ["curl", "-H", f"Authorization: Digest username=a, response={SECRET}"],
    ["curl", "-H", f"authorization:{SECRET}"],
    ["curl", "-H", f"Proxy-Authorization: Basic {SECRET}"],
    ["curl", "-H", f"Cookie: sid={SECRET}; other={SECRET}"],
    ["curl", "--header", f"X-Api-Key: {SECRET}"],
    ["curl", f"--header=X-Custom: {SECRET}"],
    ["curl", f"-HX-Mine: {SECRET}"],
    ["curl", "-b", f"sid={SECRET}"],
    ["curl", "--oauth2-bearer", SECRET],
    ["wget", f"--header=Authorization: Basic {SECRET}"],
    ["http", "https://h/x", f"Authorization:Bearer {SECRET}"],
    ["x", f"https://b.s3.amazonaws.com/k?X-Amz-Algorithm=a&X-Amz-Credential=c&X-Amz-Signature={SECRET}"],
    ["x", f"https://a.blob.core.windows.net/c?sv=2020&sig={SECRET}%3D"],
    ["x", f"https://storage.googleapis.com/b?GoogleAccessId=a&Expires=1&Signature={SECRET}"],
    ["x", f"https://cdn.invalid/x?Policy={SECRET}&Key-Pair-Id=k"],
    ["x", f"https://h/x?access_token={SECRET}"],
    ["x", f"https://h/x?a=1&key={SECRET}#part"],
    ["x", f"https://{SECRET}@github.com/a"],
    ["x", f"s3://me:{SECRET}@bucket/x"],
]


@pytest.mark.parametrize("argv", REQUESTS, ids=lambda argv: " ".join(argv).replace(SECRET, "…")[:60])
def test_logins_headers_and_signatures_of_requests(argv: list[str]) -> None:
    for text in (
        repr(mask_arguments(argv)),
        repr(mask_tree({"command": argv})),
        mask_text(shlex.join(argv)),
        mask_text(repr(argv)),
        mask_text(f"pipeline.workload.command=[{','.join(map(repr, argv))}]"),
        mask_layout(yaml.safe_dump({"command": argv}), secret_texts({"command": argv})),
    ):
        assert SECRET not in text
        assert argv[0] in text
        assert mask_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "passwd: left out",
        "password: not set",
        "Authorization: none",
        "docker run -u 1000:1000 image",
        "python -u main.py a:b",
        "curl -H 'Content-Type: application/json' https://h/x?a=1",
        "https://host:8080/p?a=1&keyword=3&max_tokens=3",
        "https://huggingface.co/org/model@main",
        "the cookie: a small cake",
    ],
)
def test_sentences_and_ordinary_requests_stay_as_they_are(text: str) -> None:
    assert mask_text(text) == text


def test_a_printed_tree_is_masked_in_any_layout() -> None:
    long = " ".join([SECRET] * 9)
    tree = {
        "env": {"MY_PASSWORD": long, "X_TOKEN": "it's"},
        "command": ["p", "--api-key", SECRET],
        "name": "me",
    }
    text = yaml.safe_dump({"a": tree}, width=40)
    shown = mask_layout(text, secret_texts(tree))
    assert SECRET not in shown and "it''s" not in shown
    assert "name: me" in shown and "--api-key" in shown


def test_logs_of_other_libraries_are_masked_before_any_handler_is_set_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = logging.getLogRecordFactory()
    logger = logging.getLogger("hydra.of.this.test")
    try:
        mask_records()
        mask_records()
        logger.warning("\t#%d : %s", 0, f"--api-key={SECRET}")
    finally:
        logging.setLogRecordFactory(before)
    assert f"#0 : --api-key={MASK}" in caplog.text
    assert SECRET not in caplog.text
