"""Certificates of nodes' agents: what an agent asks for, what the signer checks and gives.

A request is a CertificateSigningRequest of Kubernetes with our own signer's name. The API server
writes into it who made it, and on which node that one's pod runs.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kybernate import keys
from kybernate.adapters.pki import CLOCK_SKEW, Leaf, Pair, agent_leaf, certify
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, RefusedError
from kybernate.lib.certificates import UNREADABLE

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    Json = dict[str, Any]

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
USAGES = ("digital signature", "client auth", "server auth")
_ACCOUNT = f"system:serviceaccount:{keys.NAMESPACE}:{keys.AGENT_ACCOUNT}"
_LARGEST = 16 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is right: `key` is to be certified for the agent of `node`."""

    node: str
    leaf: Leaf
    key: ec.EllipticCurvePublicKey


def make_request(node: str, key: ec.EllipticCurvePrivateKey) -> Json:
    """The object that the agent of this node creates."""
    leaf = agent_leaf(node)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in leaf.dns])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM)
    # No other request can have this name: signatures of ECDSA are random.
    digest = hashes.Hash(hashes.SHA256())
    digest.update(pem)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"kyb-agent-{digest.finalize().hex()[:40]}"},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": keys.AGENT_SIGNER,
            "usages": list(USAGES),
        },
    }


def read_request(item: Json) -> Request:
    """What a CertificateSigningRequest rightly asks for. Raises RefusedError, saying what isn't
    right."""
    spec: Json = item.get("spec") or {}
    if spec.get("signerName") != keys.AGENT_SIGNER:
        raise RefusedError(f"spec.signerName is not {keys.AGENT_SIGNER}")
    if spec.get("username") != _ACCOUNT:
        raise RefusedError(f"it was made by {spec.get('username')}, not by {_ACCOUNT}")
    nodes = (spec.get("extra") or {}).get(keys.NODE_OF_TOKEN) or []
    if len(nodes) != 1:
        raise RefusedError(
            f"its token names no node ({keys.NODE_OF_TOKEN}): use the token of the agent's own pod"
        )
    if sorted(spec.get("usages") or ()) != sorted(USAGES):
        raise RefusedError(f"spec.usages must be {', '.join(USAGES)}")
    try:
        leaf = agent_leaf(nodes[0])
    except ConfigError as error:
        raise RefusedError(error.problem) from error
    return Request(nodes[0], leaf, _requested_key(str(spec.get("request") or ""), leaf, nodes[0]))


def sign(
    authority: Pair, request: Request, lasts: timedelta, now: datetime, not_before: datetime
) -> bytes:
    """The certificate as PEM. It never counts as made before `not_before`."""
    begins = max(now - CLOCK_SKEW, not_before)
    made = certify(authority, request.leaf, request.key, begins, now + lasts)
    return made.public_bytes(serialization.Encoding.PEM)


def _requested_key(text: str, leaf: Leaf, node: str) -> ec.EllipticCurvePublicKey:
    try:
        pem = base64.b64decode(text, validate=True)[:_LARGEST]
        found = x509.load_pem_x509_csr(pem)
        names = _names(found)
        common = [one.value for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        key, signed = found.public_key(), found.is_signature_valid
    except UNREADABLE as error:
        raise RefusedError(f"spec.request is no request in PEM form: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RefusedError("spec.request: its key must be of the curve P-256")
    if not signed:
        raise RefusedError("spec.request is not signed by its own key")
    if names != list(leaf.dns) or common != [leaf.common_name] or len(found.subject.rdns) != 1:
        asked = ", ".join(map(str, [*common, *names]))[:300] or "no name"
        raise RefusedError(
            f"spec.request is for {asked}; an agent on node {node} gets {leaf.dns[0]} alone"
        )
    return key


def _names(request: x509.CertificateSigningRequest) -> list[str]:
    if [one.oid for one in request.extensions] != [x509.SubjectAlternativeName.oid]:
        return []
    found = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [one.value if isinstance(one, x509.DNSName) else repr(one) for one in found]
