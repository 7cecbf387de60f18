"""Bearer tokens: made at random, kept as digests in a JSON file, each with its scopes."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from acclimate.core.errors import AcclimateError, ConfigError, DamagedFile, require_known
from acclimate.core.files import Fields, locked, read_document, write_document
from acclimate.core.text import listed

SCOPES = {
    "predict": "classify images of a site",
    "observe": "add images and labels to a site, and read what is known of sites",
    "admin": "create, move, roll back, export and delete sites",
}
_LINE = re.compile(r"[\x20-\x7e]{1,100}")


class TokenError(AcclimateError):
    """A request without a token that is known here."""


class ScopeError(AcclimateError):
    """A token that may not do what it was used for."""


@dataclass(frozen=True)
class Token:
    """What is kept of a token. A plain SHA-256 is enough: a token has 256 random bits, so that
    nobody finds it by trying, and a slow hash would only delay each request."""

    name: str  # for people and logs
    sha256: str
    scopes: Sequence[str]


class Tokens:
    """The tokens of a file, read again when it changes: who deletes an entry locks its owner out.

    While the file is missing or damaged nobody is let in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: object = None
        self._known = _read(path)
        if not self._known:
            raise ConfigError(f"{path} holds no token; make one with {_command(path)}")

    def require(self, header: str, scope: str) -> str:
        """The name of the token in an Authorization header, which must have `scope`."""
        kind, _, secret = header.partition(" ")
        if not header or kind.lower() != "bearer":
            raise TokenError(
                "this request needs a token; send the header 'Authorization: Bearer …'"
            )
        digest, owner = _digest(secret.strip()), None
        for token in self._current():  # all of them, each in constant time
            if hmac.compare_digest(token.sha256, digest):
                owner = token
        if owner is None:
            raise TokenError("this token is not known here; ask for one with `acclimate token`")
        if scope not in owner.scopes:
            raise ScopeError(
                f"this token is for {listed(owner.scopes)}, and {scope} is needed; "
                f"use one that may {SCOPES[scope]}"
            )
        return owner.name

    def _current(self) -> Sequence[Token]:
        try:
            facts = self.path.stat()
            stamp = facts.st_mtime_ns, facts.st_size, facts.st_ino
            if stamp != self._stamp:
                self._known, self._stamp = _read(self.path), stamp
        except (OSError, AcclimateError):
            self._known, self._stamp = (), None
        return self._known


def add_token(path: Path, scopes: Collection[str], name: str = "") -> str:
    """Make a token and add its digest to the file; the token itself is nowhere but here."""
    if not scopes:
        raise ConfigError(f"a token needs a scope; give --scope {', '.join(SCOPES)}")
    for scope in scopes:
        require_known(scope, SCOPES, f"there is no scope '{scope}'")
    secret = secrets.token_urlsafe(32)
    with locked(path.with_name(f".{path.name}.lock"), "adding a token", ConfigError, wait=True):
        known = _read(path) if path.exists() else ()
        name = name or f"token-{len(known) + 1}"
        if not _LINE.fullmatch(name):
            raise ConfigError(f"--name {name!r}: give 1 to 100 printable ASCII characters")
        if name in {token.name for token in known}:
            raise ConfigError(f"{path} has a token '{name}'; choose another --name, or delete it")
        token = Token(name, _digest(secret), [scope for scope in SCOPES if scope in scopes])
        write_document(path, {"tokens": [asdict(one) for one in (*known, token)]})
    return secret


def _read(path: Path) -> tuple[Token, ...]:
    try:
        fields = Fields(read_document(path), path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; make it with {_command(path)}") from None
    tokens = tuple(
        Token(one.text("name"), one.text("sha256"), one.texts("scopes"))
        for one in fields.tables("tokens")
    )
    if not all(token.sha256.isascii() for token in tokens):  # others cannot be compared
        raise DamagedFile(path)
    return tokens


def _command(path: Path) -> str:
    return f"`acclimate token --file {path} --scope admin`"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
