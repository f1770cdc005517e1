"""What the signer makes of requests, and of whom the list of revoked nodes tells."""

from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from kybernate import keys
from kybernate.adapters.pki import make_authority
from kybernate.adapters.pki.requests import make_request, read_request, sign
from kybernate.core.nodeaccess import Access, read_list, why_not
from kybernate.errors import RefusedError

NOW = datetime(2026, 6, 1, tzinfo=UTC)
_PEM = "-----BEGIN CERTIFICATE REQUEST-----\n{}-----END CERTIFICATE REQUEST-----\n"
ACCOUNT = f"system:serviceaccount:{keys.NAMESPACE}:{keys.AGENT_ACCOUNT}"


def request(node: str = "n1", of: str = "n1", **spec: Any) -> dict[str, Any]:
    """A request for `node`'s certificate as the API server has it; its token is of node `of`."""
    made = make_request(node, ec.generate_private_key(ec.SECP256R1()))
    made["spec"] |= {"username": ACCOUNT, "extra": {keys.NODE_OF_TOKEN: [of]}, **spec}
    return made


def encoded(builder: x509.CertificateSigningRequestBuilder, key: Any) -> str:
    signed = builder.sign(key, hashes.SHA256())
    return base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()


def named(*names: x509.GeneralName, key: Any = None) -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n1.agent.kyb.ai")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return encoded(builder, key or ec.generate_private_key(ec.SECP256R1()))


OWN = x509.DNSName("n1.agent.kyb.ai")


def test_what_is_right_is_signed_for_that_node_alone() -> None:
    wanted = read_request(request())
    assert wanted.node == "n1"
    authority = make_authority(keys.CN_AGENTS, timedelta(days=9), NOW, domain=keys.AGENT_DOMAIN)
    pem = sign(authority, wanted, timedelta(hours=24), NOW, NOW - timedelta(days=1))
    made = x509.load_pem_x509_certificate(pem)
    made.verify_directly_issued_by(authority.certificate)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [OWN]
    assert made.not_valid_after_utc == NOW + timedelta(hours=24)
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    limits = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    assert limits.permitted_subtrees == [x509.DNSName(keys.AGENT_DOMAIN)]
    # Never dated back to before its node was let in anew.
    since = NOW - timedelta(seconds=1)
    pem = sign(authority, wanted, timedelta(hours=24), NOW, since)
    assert x509.load_pem_x509_certificate(pem).not_valid_before_utc == since


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (request(signerName="kubernetes.io/kubelet-serving"), "signerName"),
        (request(username="system:serviceaccount:kyb-system:kyb-proxy"), "was made by"),
        (request(username="kyb-agent"), "was made by"),
        (request(extra={}), "names no node"),
        (request(extra={keys.NODE_OF_TOKEN: ["n1", "n2"]}), "names no node"),
        (request(of="n2"), "gets n2.agent.kyb.ai alone"),
        (request(of="../n1"), "is no node name"),
        (request(usages=["client auth"]), "usages"),
        (request(usages=["digital signature", "client auth", "server auth", "any"]), "usages"),
        (request(request=""), "no request in PEM form"),
        (request(request="%%%"), "no request in PEM form"),
        (request(request=named()), "alone"),
        (request(request=named(OWN, x509.DNSName("n2.agent.kyb.ai"))), "alone"),
        (request(request=named(OWN, x509.RFC822Name("a@b"))), "alone"),
        (
            request(request=named(OWN, key=rsa.generate_private_key(65537, 2048))),
            "must be of the curve P-256",
        ),
        (
            request(request=named(OWN, key=ec.generate_private_key(ec.SECP384R1()))),
            "must be of the curve P-256",
        ),
    ],
)
def test_what_is_not_right_is_told(wanted: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        read_request(wanted)


def test_a_request_that_its_key_did_not_sign_is_refused() -> None:
    made = request()
    pem = bytearray(base64.b64decode(made["spec"]["request"]))
    der = bytearray(base64.b64decode(b"".join(bytes(pem).splitlines()[1:-1])))
    der[-1] ^= 1
    body = base64.encodebytes(bytes(der))
    text = b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"
    made["spec"]["request"] = base64.b64encode(text).decode()
    with pytest.raises(RefusedError, match=r"not signed by its own key|no request in PEM form"):
        read_request(made)


def test_who_is_revoked_and_who_was_let_in_anew() -> None:
    known = read_list(
        {
            "n1": Access(True, 5, "stolen").text(),
            "n2": Access(False, 1000, "").text(),
            "n3": "nonsense",
            "n4": '{"format": 2, "state": "admitted", "at_ms": 1}',
            "n5": '{"format": 1, "state": "who knows", "at_ms": 1}',
        }
    )
    assert known["n1"] == Access(True, 5, "stolen")
    assert "is revoked" in why_not(known, "n1", 10**15)
    assert "let in again" in why_not(known, "n2", 999)
    assert why_not(known, "n2", 1000) == why_not(known, "n9", 0) == ""
    for unreadable in ("n3", "n4", "n5"):
        assert "is revoked" in why_not(known, unreadable, 10**15)


def test_no_changed_byte_of_it_stops_the_signer() -> None:
    item = request()
    sound = x509.load_pem_x509_csr(base64.b64decode(item["spec"]["request"]))
    der = sound.public_bytes(serialization.Encoding.DER)
    for at in range(len(der)):
        for value in {0, 1, 2, 0x7F, 0xFF, der[at] ^ 1, der[at] ^ 0x80, der[at] + 1 & 0xFF}:
            spoilt = base64.encodebytes(der[:at] + bytes([value]) + der[at + 1 :]).decode()
            item["spec"]["request"] = base64.b64encode(_PEM.format(spoilt).encode()).decode()
            with contextlib.suppress(RefusedError):
                assert read_request(item).node == "n1"
