"""The keys of artifacts: who signs their manifests, whom we trust, what wraps data keys.

A folder holds them, flat as a mounted Secret is:

    sign.key           Ed25519, PEM: signs new manifests, for whoever has it. Agents that have none
                       sign by their node's own key
    trust-NAME.pub     Ed25519, PEM: a manifest signed by one of these is believed
    ca.crt             X.509, PEM: what nodes have signed is read whose certificates it, or
                       agents-ca.crt, has signed
    wrap-N.key         32 bytes in hexadecimal: wraps the namespaces' keys; the highest N is used
                       for new ones, the others still open what they have wrapped
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kybernate.adapters.keys.nodesignatures import Authorities, NodeSignatures
from kybernate.core.artifacts.keyobjects import NamespaceKey
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, LockedError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.ports import Signatures, Wraps

_DOMAIN = b"kybernate artifact manifest 1\n"
_LINE = re.compile(rb"kyb-artifact ed25519 ([0-9a-f]{16}) ([0-9a-f]{128})\n")
_WRAP = re.compile(r"wrap-([0-9]{1,6})\.key")
_NONCE = 12


@dataclass(frozen=True, slots=True)
class WrapKeys:
    """Implements `ports.Kms` and `ports.Wraps` by keys in this process's memory, oldest first."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def newest(self) -> str:
        """See `ports.Kms.newest`."""
        return wrapping_id(self.keys[-1]) if self.keys else ""

    def holds(self, by: str) -> bool:
        """Whether the key of this ID is among them."""
        return any(wrapping_id(key) == by for key in self.keys)

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """See `ports.Kms.wrap`. Raises ConfigError if there is no key."""
        if not self.keys:
            raise ConfigError(
                "keys", "the folder has no wrap-1.key; nothing can be packed without it"
            )
        nonce = secrets.token_bytes(_NONCE)
        wrapped = AESGCM(self.keys[-1]).encrypt(nonce, secret, bound_to.encode())
        return self.newest, (nonce + wrapped).hex()

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """See `ports.Kms.unwrap`."""
        named = [key for key in self.keys if wrapping_id(key) == by]
        # Where none is named so, the name may be what was changed: the seal says which it is.
        for key in named or self.keys:
            with suppress(InvalidTag, ValueError):
                data = bytes.fromhex(wrapped)
                return AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], bound_to.encode())
        if named:
            raise RefusedError(f"the data key of {bound_to} was not wrapped by key {by}")
        raise LockedError(
            f"the data key of {bound_to} is wrapped by key {by}, which is not here; put it back as "
            "wrap-N.key. What it opens is kept"
        )

    def own(self, by: str) -> NamespaceKey:
        """See `ports.Wraps.own`."""
        return NamespaceKey()

    def renew(self) -> str:
        """See `ports.Kms.renew`. Raises ConfigError: a mounted Secret is not ours to write."""
        raise ConfigError(
            "wrap_keys",
            "a Secret is not written from here: add a file wrap-N.key with the next higher N to "
            "it (64 hexadecimal digits, as `openssl rand -hex 32` prints), and keep the others",
        )


@dataclass(frozen=True, slots=True)
class ArtifactKeys:
    """`signer`: None where no shared key signs. `trusted` by key ID; `kms` wraps data keys.
    `nodes`: None where no node's signature is read. `witness` raises RefusedError unless another
    node that signed a manifest wrote what it says, and gives the hash of what the files held then;
    None where nobody can tell."""

    signer: Ed25519PrivateKey | None
    trusted: Mapping[str, Ed25519PublicKey]
    kms: Wraps = field(default=WrapKeys(), repr=False)
    nodes: Signatures | None = None
    witness: Callable[[Manifest], str] | None = None

    @property
    def node(self) -> str:
        """The node that signs by its own key; empty where a shared one does."""
        return self.nodes.node if self.nodes and not self.signer else ""

    @property
    def own(self) -> str:
        """The node whose signature is one's own; empty if none is."""
        return self.nodes.node if self.nodes else ""

    def sign(self, body: bytes) -> bytes:
        """The body below the line that says who signs it. Raises ConfigError without a signer."""
        if self.signer is None:
            if self.nodes is not None and self.node:
                return self.nodes.sign(body)
            raise ConfigError("keys", "the folder has no sign.key; nothing can be saved without it")
        signature = self.signer.sign(_DOMAIN + body)
        line = f"kyb-artifact ed25519 {key_id(self.signer.public_key())} {signature.hex()}\n"
        return line.encode("ascii") + body

    def opened(self, signed: bytes, what: str) -> tuple[bytes, str]:
        """The body, if one we trust has signed it, and the node that has; empty for a shared key.
        Raises RefusedError if not; LockedError if nobody here knows who has."""
        if self.nodes is not None and (by_node := self.nodes.opened(signed, what)) is not None:
            return by_node
        found = _LINE.match(signed[:200])
        if found is None:
            raise RefusedError(f"{what} is not signed; it is not restored from")
        signer, signature = found.group(1).decode(), bytes.fromhex(found.group(2).decode())
        named, body = self.trusted.get(signer), signed[found.end() :]
        if named is not None and _has_signed(named, signature, body):
            return body, ""
        # Where one of these has signed it after all, the name is what was changed.
        if named is not None or any(_has_signed(k, signature, body) for k in self.trusted.values()):
            raise RefusedError(f"{what} was changed after it was signed by key {signer}")
        raise LockedError(
            f"{what} is signed by key {signer}, which is not trusted here; to trust it put its "
            "public key beside the others as trust-NAME.pub. It is kept"
        )

    def see_believed(self, manifest: Manifest) -> str:
        """Raise RefusedError unless the node that signed it is to be believed of it; DeadlineError,
        RetryableError where that can't be known now.

        Gives the hash that its files' content must have; empty where its signature is enough.
        """
        if manifest.node in ("", self.own):
            return ""
        if self.witness is None:
            raise RefusedError(
                f"{manifest.id} was signed by node {manifest.node}, and without a registry nobody "
                "can say that it wrote that: only that node restores it."
            )
        return self.witness(manifest)


def _has_signed(key: Ed25519PublicKey, signature: bytes, body: bytes) -> bool:
    try:
        key.verify(signature, _DOMAIN + body)
    except InvalidSignature:
        return False
    return True


def key_id(key: Ed25519PublicKey) -> str:
    """How manifests name it: 16 hexadecimal digits."""
    return blake3(key.public_bytes_raw()).hexdigest()[:16]


def wrapping_id(key: bytes) -> str:
    """How wrapped data keys name it: 16 hexadecimal digits, which don't tell the key."""
    return blake3(key, derive_key_context="kybernate 2026 name of a wrapping key").hexdigest()[:16]


def read_folder(folder: Path, nodes: Signatures | None = None) -> ArtifactKeys:
    """The keys of a folder. `nodes`: of which node's agent these are; without, its ca.crt counts.
    Raises ConfigError, naming the file."""
    try:
        names = sorted(path.name for path in folder.iterdir())
        signer = _signer(folder) if "sign.key" in names else None
        trusted = [_public(folder / n) for n in names if re.fullmatch(r"trust-.+\.pub", n)]
        wrapping = _wrap_keys(folder, names)
    except OSError as error:
        raise ConfigError(str(error.filename), f"can't be read: {error.strerror}") from error
    if nodes is None and {"ca.crt", "agents-ca.crt"} & set(names):
        nodes = NodeSignatures(Authorities(folder))
    if not trusted and nodes is None:
        raise ConfigError(
            str(folder), "has no trust-NAME.pub; make keys with `kybernate artifacts keys --dir`"
        )
    return ArtifactKeys(signer, {key_id(key): key for key in trusted}, wrapping, nodes)


def read_wrap_keys(folder: Path) -> WrapKeys:
    """The wrapping keys of a folder alone; none if it isn't there. Raises ConfigError."""
    try:
        return _wrap_keys(folder, [path.name for path in folder.iterdir()])
    except FileNotFoundError:
        return WrapKeys()
    except OSError as error:
        raise ConfigError(str(error.filename), f"can't be read: {error.strerror}") from error


def make_folder(folder: Path, name: str) -> list[str]:
    """Make what is missing, keep the rest; the names of the files made. Raises ConfigError.

    `name` is that of this cluster, for its public key.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = []
        if not (folder / "sign.key").exists():
            _write(folder / "sign.key", _private_pem(Ed25519PrivateKey.generate()))
            made.append("sign.key")
        public = folder / f"trust-{name}.pub"
        if not public.exists():
            _write(public, public_pem(_signer(folder).public_key()))
            made.append(public.name)
        if not list(folder.glob("wrap-*.key")):
            _write(folder / "wrap-1.key", secrets.token_hex(32).encode())
            made.append("wrap-1.key")
    except OSError as error:
        raise ConfigError(str(error.filename), f"can't be written: {error.strerror}") from error
    return made


def generated() -> ArtifactKeys:
    """Keys of nobody's, for one use."""
    signer = Ed25519PrivateKey.generate()
    public = signer.public_key()
    return ArtifactKeys(signer, {key_id(public): public}, WrapKeys((secrets.token_bytes(32),)))


def public_pem(key: Ed25519PublicKey) -> bytes:
    """The public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_public(path: Path) -> Ed25519PublicKey:
    """A public key's file. Raises ConfigError."""
    try:
        return _public(path)
    except OSError as error:
        raise ConfigError(str(path), f"can't be read: {error.strerror}") from error


def read_wrapping(path: Path) -> bytes:
    """A wrapping key's file. Raises ConfigError."""
    try:
        return _wrapping(path)
    except OSError as error:
        raise ConfigError(str(path), f"can't be read: {error.strerror}") from error


def write_wrapping(path: Path) -> None:
    """Make a wrapping key's file. Raises ConfigError."""
    try:
        _write(path, secrets.token_hex(32).encode())
    except OSError as error:
        raise ConfigError(str(path), f"can't be written: {error.strerror}") from error


def _wrap_keys(folder: Path, names: Iterable[str]) -> WrapKeys:
    numbers = sorted(int(m.group(1)) for name in names if (m := _WRAP.fullmatch(name)))
    return WrapKeys(tuple(_wrapping(folder / f"wrap-{number}.key") for number in numbers))


def _signer(folder: Path) -> Ed25519PrivateKey:
    path = folder / "sign.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(path), f"is no private key in PEM form ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(str(path), "is no Ed25519 key")
    return key


def _public(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise ConfigError(str(path), f"is no public key in PEM form ({error})") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(str(path), "is no Ed25519 key")
    return key


def _wrapping(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except ValueError as error:
        raise ConfigError(str(path), "must be 64 hexadecimal digits") from error
    if len(key) != 32:
        raise ConfigError(str(path), "must be 64 hexadecimal digits")
    return key


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    beside.rename(path)
