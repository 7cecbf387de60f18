"""Tokens: kept as digests, let in scope by scope, and locked out when their entry goes."""

import json
from pathlib import Path

import pytest

from acclimate.core.errors import ConfigError, DamagedFile, UnknownName
from acclimate.serve.tokens import SCOPES, ScopeError, TokenError, Tokens, add_token


def test_a_token_may_do_what_its_scopes_say(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secrets = {scope: add_token(path, [scope], f"for-{scope}") for scope in SCOPES}
    tokens = Tokens(path)
    for held, secret in secrets.items():
        for scope in SCOPES:
            if scope == held:
                assert tokens.require(f"Bearer {secret}", scope) == f"for-{held}"
            else:
                with pytest.raises(ScopeError, match=f"{held}.*{scope}"):
                    tokens.require(f"Bearer {secret}", scope)


def test_the_file_does_not_hold_the_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secret = add_token(path, ["predict", "observe"])
    assert len(secret) == 43  # 32 bytes in base64
    assert secret not in path.read_text()
    assert json.loads(path.read_text())["tokens"][0]["scopes"] == ["predict", "observe"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer x", "Basic {}", "{}", "Bearer {}x", "Bearer \udcff"]
)
def test_without_a_known_token_nothing_goes(tmp_path: Path, header: str) -> None:
    secret = add_token(tmp_path / "tokens.json", SCOPES)
    with pytest.raises(TokenError):
        Tokens(tmp_path / "tokens.json").require(header.format(secret), "predict")


def test_a_deleted_entry_locks_its_owner_out(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    first, second = (add_token(path, ["admin"]) for _ in range(2))
    tokens = Tokens(path)
    tokens.require(f"Bearer {first}", "admin")
    entries = json.loads(path.read_text())
    path.write_text(json.dumps(entries | {"tokens": entries["tokens"][1:]}))
    with pytest.raises(TokenError):
        tokens.require(f"Bearer {first}", "admin")
    assert tokens.require(f"bearer {second}", "admin") == "token-2"
    third = add_token(path, ["admin"], "third")
    assert tokens.require(f"Bearer {third}", "admin") == "third"


@pytest.mark.parametrize("content", [None, "{", '{"tokens": [{"name": "a"}]}'])
def test_while_the_file_is_missing_or_damaged_nobody_is_let_in(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "tokens.json"
    secret = add_token(path, ["admin"])
    tokens = Tokens(path)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(TokenError):
        tokens.require(f"Bearer {secret}", "admin")


def test_what_is_wrong_is_said_when_the_server_starts(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with pytest.raises(ConfigError, match=r"tokens\.json.*acclimate token"):
        Tokens(path)
    path.write_text('{"tokens": []}')
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        Tokens(path)
    path.write_text('{"tokens": [{"name": "a", "sha256": "é", "scopes": ["admin"]}]}')
    with pytest.raises(DamagedFile):
        Tokens(path)


def test_wrong_scopes_and_names(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with pytest.raises(UnknownName, match="predict"):
        add_token(path, ["predikt"])
    with pytest.raises(ConfigError, match="scope"):
        add_token(path, [])
    with pytest.raises(ConfigError, match="name"):
        add_token(path, ["admin"], "a\nb")
    add_token(path, ["admin"], "a")
    with pytest.raises(ConfigError, match="'a'"):
        add_token(path, ["admin"], "a")
