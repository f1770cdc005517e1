from __future__ import annotations

import json
import ssl
import stat

from cryptography import x509

from tests.cluster.parts import pki


def test_every_identity_is_signed_and_private(tmp_path) -> None:
    authority = pki.Authority(tmp_path)
    root = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    for identity in pki.identities(["n1"]):
        authority.issue(identity)
        leaf = x509.load_pem_x509_certificate((tmp_path / f"{identity.file}.crt").read_bytes())
        leaf.verify_directly_issued_by(root)
        key = tmp_path / f"{identity.file}.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        ssl.create_default_context().load_cert_chain(tmp_path / f"{identity.file}.crt", key)


def test_a_node_is_known_by_the_name_that_the_api_server_wants() -> None:
    found = {one.file: one for one in pki.identities(["n1", "n2"])}
    assert found["node-n2"].common_name == "system:node:n2"
    assert found["node-n2"].groups == ("system:nodes",)
    assert "127.0.0.1" in found["apiserver"].alt_names
    (server, *_) = pki.identities(["n1"], ["10.88.1.1"])
    assert "10.88.1.1" in server.alt_names


def test_a_kubeconfig_names_server_authority_and_user(tmp_path) -> None:
    config = json.loads(pki.kubeconfig("https://s:1", tmp_path / "ca.crt", {"token": "t"}))
    assert config["clusters"][0]["cluster"]["server"] == "https://s:1"
    assert config["users"][0]["user"] == {"token": "t"}
    assert config["contexts"][0]["name"] == config["current-context"]
