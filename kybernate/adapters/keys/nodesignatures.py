"""Signatures of nodes: each by its own key, with the certificate that proves whose it is.

The key is that of the node's agent: made on the node, or by `kybernate pki`. It is read again for
each signature, since it is renewed. A certificate that has ended still tells who signed while it
was good: whether a node is believed of a state is the registry's to say, for what it wrote then.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kybernate import keys
from kybernate.errors import ConfigError, LockedError, RefusedError
from kybernate.lib.certificates import UNREADABLE

if TYPE_CHECKING:
    from pathlib import Path

_DOMAIN = b"kybernate artifact manifest of a node 1\n"
"""Before what is signed: no signature of a TLS handshake is one of a manifest, nor the reverse."""
_LINE = re.compile(rb"kyb-artifact node ([A-Za-z0-9+/]{100,4000}={0,2}) ([0-9a-f]{16,256})\n")
_LONGEST = 4400


class Shown(Protocol):
    """Key and certificate, as PEM."""

    @property
    def key(self) -> bytes:
        """The key."""
        ...

    @property
    def certificate(self) -> bytes:
        """The certificate."""
        ...


class Identity(Protocol):
    """Whose agent this is, and who certifies others. Safe to use from several threads."""

    @property
    def node(self) -> str:
        """The agent's node; empty for nobody's."""
        ...

    def signing(self) -> Shown:
        """By what it signs now. Raises ConfigError; RetryableError while it has nothing."""
        ...

    def authorities(self) -> bytes:
        """All authorities that certify agents, or did: PEM. Raises ConfigError."""
        ...


class NodeSignatures:
    """Implements `ports.Signatures`: what `identity` signs, and what other nodes have signed."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    @property
    def node(self) -> str:
        """See `ports.Signatures.node`."""
        return self._identity.node

    def sign(self, body: bytes) -> bytes:
        """See `ports.Signatures.sign`."""
        shown, what = self._identity.signing(), f"the certificate of agent-{self.node}"
        try:
            certificate = x509.load_pem_x509_certificate(shown.certificate)
            key = serialization.load_pem_private_key(shown.key, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigError("tls_dir", f"{what} can't be used: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError("tls_dir", f"{what} has no elliptic-curve key")
        signature = key.sign(_DOMAIN + body, ec.ECDSA(hashes.SHA256()))
        der = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
        return f"kyb-artifact node {der} {signature.hex()}\n".encode("ascii") + body

    def opened(self, signed: bytes, what: str) -> tuple[bytes, str] | None:
        """See `ports.Signatures.opened`."""
        found = _LINE.match(signed[:_LONGEST])
        if found is None:
            return None
        body = signed[found.end() :]
        try:
            certificate = x509.load_der_x509_certificate(
                base64.b64decode(found.group(1), validate=True)
            )
        except UNREADABLE as error:
            raise RefusedError(f"{what} carries no certificate that can be read") from error
        # Before anything else of it is looked at: whoever has no certificate may have made it up.
        known = self._known()
        certified = any(_signed_by(certificate, one) for one in known)
        node = _node_of(certificate) if certified else ""
        if not node and (certified or _names_one_of(certificate, known)):
            raise RefusedError(
                f"{what} is signed by who has no certificate of a node's agent by an authority "
                "that is known here"
            )
        _see_unchanged(certificate, body, found.group(2), node, what)
        if not node:
            raise LockedError(
                f"{what} is signed under an authority that is not known here; if it is one of "
                "yours, put its certificate back into ca.crt or agents-ca.crt. It is kept"
            )
        return body, node

    def _known(self) -> list[x509.Certificate]:
        try:
            authorities = x509.load_pem_x509_certificates(self._identity.authorities())
        except ValueError as error:
            raise ConfigError("ca.crt", f"can't be read: {error}") from error
        if not authorities:
            raise ConfigError("ca.crt", "holds no certificate in PEM form")
        return authorities


def _see_unchanged(
    certificate: x509.Certificate, body: bytes, signature: bytes, node: str, what: str
) -> None:
    """Raise RefusedError unless the certificate's key signed the body."""
    who = f"node {node}" if node else "somebody"
    try:
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise RefusedError(f"{what} is signed by {who} with no elliptic-curve key")
        made = bytes.fromhex(signature.decode())
        key.verify(made, _DOMAIN + body, ec.ECDSA(hashes.SHA256()))
    except UNREADABLE as error:
        raise RefusedError(f"{what} was changed after {who} signed it") from error


def _names_one_of(certificate: x509.Certificate, known: list[x509.Certificate]) -> bool:
    """Whether it says that the key of one of these certified it; if that is not so, it was changed
    or made up, and no authority is missing."""
    try:
        kind = x509.AuthorityKeyIdentifier
        said = certificate.extensions.get_extension_for_class(kind).value.key_identifier
    except (x509.ExtensionNotFound, *UNREADABLE):
        return False  # nobody's authority is named in a way that can be read
    digests = (x509.SubjectKeyIdentifier.from_public_key(one.public_key()).digest for one in known)
    return any(said == one for one in digests)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        basic = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(authority)
    except (x509.ExtensionNotFound, *UNREADABLE):
        return False
    return basic.ca


def _node_of(certificate: x509.Certificate) -> str:
    """The node of whose agent it is; empty if it is another's, or several nodes'."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *UNREADABLE):
        return ""
    names = extension.value.get_values_for_type(x509.DNSName)
    nodes = [node for name in names if (node := keys.agent_node(name))]
    return nodes[0] if len(nodes) == 1 and len(names) == 1 else ""


class Authorities:
    """Implements `Identity` for who signs nothing: a folder with ca.crt, or agents-ca.crt too."""

    node = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def signing(self) -> Shown:
        """It is nobody's. Raises ConfigError always."""
        raise ConfigError(str(self._folder), "is of no node, and nothing is signed by it")

    def authorities(self) -> bytes:
        """See `Identity.authorities`."""
        try:
            names = ("ca.crt", "agents-ca.crt")
            files = [path for name in names if (path := self._folder / name).is_file()]
            found = b"".join(path.read_bytes() for path in files)
        except OSError as error:
            raise ConfigError(str(error.filename), f"can't be read: {error.strerror}") from error
        if not found:
            raise ConfigError(str(self._folder), "must hold ca.crt, to read what nodes signed")
        return found
