"""Certificates: an authority, leaves that it signs, and the folder that holds those of a cluster.

Keys are EC P-256. Times are aware datetimes in UTC, and `now` is passed in. What is on disk is
written beside and renamed, so that a reader never sees half a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_NODE_FORM = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_AGENT_PREFIX = "agent-"
# A common name ends at 64 characters (RFC 5280), a label of a DNS name at 63.
_LONGEST_COMMON_NAME = 64
# Clocks of two machines differ; a certificate made just now must be good on both.
CLOCK_SKEW = timedelta(minutes=5)

AUTHORITY = "ca"
"""The name of the authority's files: `ca.crt`, `ca.key`."""
AGENTS = "agents-ca"
"""The name of the files of the authority that certifies agents alone."""


@dataclass(frozen=True, slots=True)
class Validity:
    """How long certificates are good for, and how long before their end they are renewed."""

    authority: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    renew_before: timedelta = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a certificate is to say: whom it names, and on which side of a connection it serves."""

    common_name: str
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    server: bool = False
    client: bool = False

    @property
    def purposes(self) -> list[x509.ObjectIdentifier]:
        """What its extended key usage says."""
        return [
            *([ExtendedKeyUsageOID.SERVER_AUTH] if self.server else []),
            *([ExtendedKeyUsageOID.CLIENT_AUTH] if self.client else []),
        ]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key as PEM (PKCS #8, not encrypted)."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def ends_within(self, span: timedelta, now: datetime) -> bool:
        """Whether the certificate is over at `now + span`."""
        return self.certificate.not_valid_after_utc <= now + span


@dataclass(frozen=True, slots=True)
class Entry:
    """One certificate of a folder; `problem` is why it would be made again, if it would."""

    name: str
    common_name: str
    names: tuple[str, ...]
    ends: datetime
    problem: str | None


@dataclass(frozen=True, slots=True)
class Made:
    """What `Folder.init` did for one certificate; `reason` is None if it was kept as it was."""

    name: str
    reason: str | None


def make_authority(common_name: str, lasts: timedelta, now: datetime, *, domain: str = "") -> Pair:
    """A self-signed authority that may sign leaves, and no further authorities; with `domain` none
    that carry a DNS name outside of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    usage = _usage(signs_certificates=True)
    builder = (
        _builder(name, name, key.public_key(), now - CLOCK_SKEW, now + lasts)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    if domain:
        within = x509.NameConstraints([x509.DNSName(domain)], None)
        builder = builder.add_extension(within, critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, leaf: Leaf, lasts: timedelta, now: datetime) -> Pair:
    """A leaf signed by `authority`; it never outlives the authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Pair(certify(authority, leaf, key.public_key(), now - CLOCK_SKEW, now + lasts), key)


def certify(
    authority: Pair,
    leaf: Leaf,
    key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
) -> x509.Certificate:
    """A certificate for somebody's key; it never outlives the authority."""
    ends = min(ends, authority.certificate.not_valid_after_utc)
    issuer = authority.certificate.subject
    builder = _builder(_name(leaf.common_name), issuer, key, begins, ends)
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(leaf.purposes), critical=False)
    )
    if leaf.dns or leaf.addresses:
        builder = builder.add_extension(_alternatives(leaf), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
        critical=False,
    )
    return builder.sign(authority.key, hashes.SHA256())


def read_pair(certificate: bytes, key: bytes, what: str) -> Pair:
    """The pair that two PEM texts hold. Raises ConfigError, naming `what`, if they don't."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(what, f"is no certificate with its key in PEM form ({error})") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(what, "the key is no elliptic-curve key; remove both files to renew them")
    if private.public_key() != loaded.public_key():
        raise ConfigError(what, "the key is not that of the certificate; remove both to renew them")
    return Pair(loaded, private)


def why_renew(
    pair: Pair, leaf: Leaf, authority: Pair, renew_before: timedelta, now: datetime
) -> str | None:
    """Why this pair can't continue as `leaf` under `authority`, in a few words; None if it can."""
    try:
        pair.certificate.verify_directly_issued_by(authority.certificate)
    except (InvalidSignature, ValueError, TypeError):
        return "not signed by this authority"
    if _common_name(pair.certificate) != leaf.common_name or set(_names(pair.certificate)) != {
        *leaf.dns,
        *leaf.addresses,
    }:
        return "made for other names"
    if _purposes(pair.certificate) != set(leaf.purposes):
        return "made for other uses"
    if pair.ends_within(renew_before, now) and not authority.ends_within(renew_before, now):
        return f"ends on {pair.certificate.not_valid_after_utc:%Y-%m-%d}"
    return None


def cluster_leaves(nodes: Iterable[str]) -> dict[str, Leaf]:
    """The certificates between our services, by file name: five fixed ones and one per agent.

    Raises ConfigError for a name that no node can have.
    """
    leaves = {
        "proxy": Leaf(keys.CN_PROXY, client=True),
        "scheduler": Leaf(keys.CN_SCHEDULER, client=True),
        "extender": Leaf(
            keys.CN_EXTENDER,
            dns=(f"{keys.CN_EXTENDER}.{keys.NAMESPACE}.svc", "localhost"),
            addresses=("127.0.0.1",),
            server=True,
        ),
        "controller": Leaf(keys.CN_CONTROLLER, client=True),
        "registry": Leaf(
            keys.CN_REGISTRY,
            dns=(f"{keys.CN_REGISTRY}.{keys.NAMESPACE}.svc", "localhost"),
            addresses=("127.0.0.1",),
            server=True,
        ),
    }
    for node in nodes:
        leaves[_AGENT_PREFIX + node] = agent_leaf(node)
    return leaves


_AUTHORITIES = {AUTHORITY: ("kyb-ca", ""), AGENTS: (keys.CN_AGENTS, keys.AGENT_DOMAIN)}
"""Common name, and the DNS domain that it may certify: any, if empty."""


class Folder:
    """The certificates of a cluster in one folder; keys are readable by the owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def init(self, nodes: Iterable[str], validity: Validity, now: datetime) -> list[Made]:
        """Make what is missing, renew what can't continue, keep the rest.

        Agents that have files here already count among the nodes. Raises ConfigError if a file
        that is needed is there but can't be used or read.
        """
        leaves = cluster_leaves(nodes)
        with self._locked():
            leaves = {**cluster_leaves(self._known_nodes()), **leaves}
            authority, made = self._ensure_authority(AUTHORITY, validity, now)
            results = [made, self._ensure_authority(AGENTS, validity, now)[1]]
            for name, leaf in leaves.items():
                reason = self._why_make(name, leaf, authority, validity, now)
                if reason:
                    self._write(name, issue(authority, leaf, validity.leaf, now))
                results.append(Made(name, reason))
        return results

    def show(self, validity: Validity, now: datetime) -> list[Entry]:
        """All certificates of the folder. Raises ConfigError if there is no authority here."""
        authority = self.authority()
        problem = "ends soon" if authority.ends_within(validity.renew_before, now) else None
        entries = [_entry(AUTHORITY, authority, problem)]
        if (self.path / f"{AGENTS}.crt").exists():
            agents = self.authority(AGENTS)
            problem = "ends soon" if agents.ends_within(validity.renew_before, now) else None
            entries.append(_entry(AGENTS, agents, problem))
        for name, leaf in cluster_leaves(self._known_nodes()).items():
            if not (self.path / f"{name}.crt").exists():
                continue
            pair = self._read(name)
            problem = why_renew(pair, leaf, authority, validity.renew_before, now)
            entries.append(_entry(name, pair, problem))
        return entries

    def authority(self, name: str = AUTHORITY) -> Pair:
        """An authority. Raises ConfigError if it isn't here or can't be used."""
        if not (self.path / f"{name}.crt").exists():
            raise ConfigError(
                str(self.path), f"holds no {name}.crt; make one with `kybernate pki init --dir`"
            )
        return self._read(name)

    def _known_nodes(self) -> list[str]:
        files = sorted(self.path.glob(f"{_AGENT_PREFIX}*.crt"))
        return [file.stem.removeprefix(_AGENT_PREFIX) for file in files]

    def _ensure_authority(self, name: str, validity: Validity, now: datetime) -> tuple[Pair, Made]:
        certificate, key = self.path / f"{name}.crt", self.path / f"{name}.key"
        # The key is written first: alone, it is what a crash between the two left behind.
        if certificate.exists():
            pair = self._read(name)
            if not pair.ends_within(validity.renew_before, now):
                return pair, Made(name, None)
            reason = f"ends on {pair.certificate.not_valid_after_utc:%Y-%m-%d}"
        else:
            reason = "missing certificate" if key.exists() else "missing"
        common_name, domain = _AUTHORITIES[name]
        pair = make_authority(common_name, validity.authority, now, domain=domain)
        self._write(name, pair)
        return pair, Made(name, reason)

    def _why_make(
        self, name: str, leaf: Leaf, authority: Pair, validity: Validity, now: datetime
    ) -> str | None:
        if not (self.path / f"{name}.crt").exists() or not (self.path / f"{name}.key").exists():
            return "missing"
        try:
            pair = self._read(name)
        except ConfigError as error:
            return error.problem
        return why_renew(pair, leaf, authority, validity.renew_before, now)

    def _read(self, name: str) -> Pair:
        certificate, key = self.path / f"{name}.crt", self.path / f"{name}.key"
        try:
            return read_pair(certificate.read_bytes(), key.read_bytes(), str(certificate))
        except OSError as error:
            raise ConfigError(str(error.filename), f"can't be read: {error.strerror}") from error

    def _write(self, name: str, pair: Pair) -> None:
        write_private(self.path / f"{name}.key", pair.key_pem)
        write_private(self.path / f"{name}.crt", pair.certificate_pem, mode=0o644)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(str(self.path), f"is no usable folder: {error.strerror}") from error
        try:
            # Two that start at once must not each make an authority.
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step; by default only the owner may read it.

    Raises ConfigError if the folder can't be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(str(path), f"can't be written: {error.strerror}") from error


def agent_leaf(node: str) -> Leaf:
    """What the certificate of a node's agent says. Raises ConfigError for what is no node name."""
    name = keys.agent_server_name(node)
    if not _NODE_FORM.fullmatch(node) or len(name) > 253:
        raise ConfigError(
            "--node", f"{node!r} is no node name; names are lower-case letters, digits, - and ."
        )
    # The name that a client checks is the alternative one, which has room for long names.
    short = name if len(name) <= _LONGEST_COMMON_NAME else name[:_LONGEST_COMMON_NAME]
    # It serves its node, and it calls the registry and other agents.
    return Leaf(short, dns=(name,), server=True, client=True)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(leaf: Leaf) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [
            *(x509.DNSName(name) for name in leaf.dns),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in leaf.addresses),
        ]
    )


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _purposes(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return set()
    return set(found)


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = found.get_values_for_type(x509.IPAddress)
    return (*found.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))


def _entry(name: str, pair: Pair, problem: str | None) -> Entry:
    certificate = pair.certificate
    ends = certificate.not_valid_after_utc
    return Entry(name, _common_name(certificate), _names(certificate), ends, problem)
