"""The control plane's certificates, keys and kubeconfigs."""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIFETIME = datetime.timedelta(days=365)
SERVICE_IP = "10.96.0.1"


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate to make: its file's stem, its names, and its groups (O)."""

    file: str
    common_name: str
    groups: tuple[str, ...] = ()
    alt_names: tuple[str, ...] = ()


def identities(nodes: Sequence[str], addresses: Sequence[str] = ()) -> tuple[Identity, ...]:
    """The certificates that a cluster with these nodes needs.

    `addresses` are further ones at which the API server may be reached.
    """
    local = ("127.0.0.1", SERVICE_IP, "localhost", "kubernetes", "kubernetes.default")
    return (
        Identity("apiserver", "kube-apiserver", (), (*local, *addresses, "kubernetes.default.svc")),
        Identity("kubelet-client", "apiserver-kubelet-client", ("system:masters",)),
        Identity("admin", "admin", ("system:masters",)),
        Identity("kube-scheduler", "system:kube-scheduler"),
        Identity("controller-manager", "system:kube-controller-manager"),
        *(Identity(f"node-{node}", f"system:node:{node}", ("system:nodes",)) for node in nodes),
    )


class Authority:
    """A certificate authority whose files lie in one folder (mode 0600)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "one-machine-ca")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            self._draft(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca.crt", _pem(self._certificate))

    def issue(self, identity: Identity) -> None:
        """Writes `<file>.crt` and `<file>.key`."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in identity.groups]
        parts.append(x509.NameAttribute(NameOID.COMMON_NAME, identity.common_name))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        draft = self._draft(x509.Name(parts), key.public_key()).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if identity.alt_names:
            names = x509.SubjectAlternativeName([_alt_name(name) for name in identity.alt_names])
            draft = draft.add_extension(names, critical=False)
        self._write(f"{identity.file}.crt", _pem(draft.sign(self._key, hashes.SHA256())))
        self._write(f"{identity.file}.key", _key_pem(key))

    def service_account_keys(self) -> None:
        """Writes `sa.key` and `sa.pub`, which sign and verify service account tokens."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._write("sa.key", _key_pem(key))
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._write("sa.pub", public)

    def _draft(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + LIFETIME)
        )

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_bytes(data)


def kubeconfig(server: str, authority: Path, user: dict[str, str]) -> str:
    """A kubeconfig as JSON (which is YAML). `user` as in its `users[].user`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one-machine",
        "contexts": [{"name": "one-machine", "context": {"cluster": "one-machine", "user": "me"}}],
        "clusters": [
            {
                "name": "one-machine",
                "cluster": {"server": server, "certificate-authority": str(authority)},
            }
        ],
        "users": [{"name": "me", "user": user}],
    }
    return json.dumps(config, indent=1)


def certificate_user(folder: Path, file: str) -> dict[str, str]:
    """The `user` of a kubeconfig that shows a client certificate."""
    return {
        "client-certificate": str(folder / f"{file}.crt"),
        "client-key": str(folder / f"{file}.key"),
    }


def _alt_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
