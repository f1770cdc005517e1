"""What nodes sign by keys of their own: who is named, and what proves it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import example, given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.adapters import pki
from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.keys.artifactkeys import make_folder, read_folder
from kybernate.adapters.keys.nodesignatures import Authorities, NodeSignatures
from kybernate.errors import ConfigError, LockedError, RefusedError
from kybernate.runtime.identity import Identity

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
BODY = b'{"id":"team-a/llama-0"}'


def certified(folder, nodes=("a", "b"), now=NOW):
    folder.mkdir(exist_ok=True)
    pki.Folder(folder).init(nodes, pki.Validity(DAY, DAY, timedelta(hours=1)), now)
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("tls"))


def of(folder, node=""):
    return NodeSignatures(Identity(node, folder) if node else Authorities(folder))


def put(folder, node, leaf, authority=None):
    """A certificate of this authority for whoever `leaf` names, as that of `node`."""
    pair = pki.issue(authority or pki.Folder(folder).authority(), leaf, DAY, NOW)
    (folder / f"agent-{node}.crt").write_bytes(pair.certificate_pem)
    (folder / f"agent-{node}.key").write_bytes(pair.key_pem)


def test_it_says_which_node_signed(tls):
    signed = of(tls, "a").sign(BODY)
    assert signed.endswith(b"\n" + BODY)
    for reader in (of(tls, "b"), of(tls)):
        assert reader.opened(signed, "it") == (BODY, "a")


def test_what_a_shared_key_signed_is_somebody_elses_to_read(tls):
    shared = artifactkeys.generated()
    signed = shared.sign(BODY)
    assert of(tls, "a").opened(signed, "it") is None
    both = replace(shared, nodes=of(tls, "a"))
    assert both.opened(signed, "it") == (BODY, "")
    assert both.opened(of(tls, "b").sign(BODY), "it") == (BODY, "b")


def test_who_has_a_shared_key_signs_by_that_and_else_by_its_own(tls):
    shared = artifactkeys.generated()
    both = replace(shared, nodes=of(tls, "a"))
    assert (both.node, both.own) == ("", "a")
    assert both.sign(BODY).startswith(b"kyb-artifact ed25519 ")
    alone = replace(both, signer=None)
    assert (alone.node, alone.own) == ("a", "a")
    assert alone.opened(alone.sign(BODY), "it") == (BODY, "a")
    with pytest.raises(ConfigError, match=r"no sign\.key"):
        replace(alone, nodes=of(tls)).sign(BODY)


# `cryptography` warns of a serial number below 0; the signature is refused like any other.
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@example(at=38, bit=5)  # the sign of the serial number, most often
@example(at=323, bit=4)  # two extensions of one kind
@given(at=st.integers(0, 2000), bit=st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(tls, at, bit):
    signed = bytearray(of(tls, "a").sign(BODY))
    signed[at % len(signed)] ^= 1 << bit
    try:
        found = of(tls).opened(bytes(signed), "it")
    except (RefusedError, LockedError):
        return  # locked, if what was changed is who certified it
    # Another line than ours is nobody's; spare bits of base64 are nothing that is said.
    assert found in (None, (BODY, "a"))


def test_a_node_can_not_sign_for_another(tls, tmp_path):
    """With its own key under another's certificate, or one that it made itself."""
    stolen = certified(tmp_path / "stolen")
    for name in ("ca.crt", "agent-a.crt"):
        (stolen / name).write_bytes((tls / name).read_bytes())
    with pytest.raises(RefusedError, match="was changed after node a signed it"):
        of(tls).opened(of(stolen, "a").sign(BODY), "it")
    made = certified(tmp_path / "made")
    with pytest.raises(LockedError, match="not known here"):
        of(tls).opened(of(made, "a").sign(BODY), "it")
    # Nor is it believed for saying that a known authority certified it.
    key = pki.Folder(tls).authority().key.public_key()
    mine = pki.Folder(made).authority()
    leaf = x509.load_pem_x509_certificate((made / "agent-a.crt").read_bytes())
    forged = x509.CertificateBuilder(
        *(leaf.issuer, leaf.subject, leaf.public_key(), leaf.serial_number),
        *(leaf.not_valid_before_utc, leaf.not_valid_after_utc),
    ).add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
    signed = forged.sign(mine.key, hashes.SHA256())
    (made / "agent-a.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(RefusedError, match="who has no certificate"):
        of(tls).opened(of(made, "a").sign(BODY), "it")


def test_what_a_mounted_certificate_signed_is_read_whoever_may_connect(tls):
    signed = of(tls, "a").sign(BODY)
    for node in "ab":
        reader = NodeSignatures(Identity(node, tls, shared=False))
        assert reader.opened(signed, "it") == (BODY, "a")


def test_what_was_signed_under_an_authority_that_is_missing_waits_for_it(tmp_path):
    old, new = certified(tmp_path / "old"), certified(tmp_path / "new")
    signed = of(old, "a").sign(BODY)
    with pytest.raises(LockedError, match="put its certificate back"):
        of(new, "a").opened(signed, "it")
    # Of what was changed nobody waits for an authority.
    with pytest.raises(RefusedError, match="was changed"):
        of(new, "a").opened(signed + b" ", "it")
    both = (new / "ca.crt").read_bytes() + (old / "ca.crt").read_bytes()
    (new / "ca.crt").write_bytes(both)
    assert of(new, "a").opened(signed, "it") == (BODY, "a")


def test_who_is_no_nodes_agent_signs_nothing(tmp_path):
    folder = certified(tmp_path / "tls")
    one = (keys.agent_server_name("a"),)
    for leaf in (
        pki.Leaf(keys.CN_PROXY, client=True),
        pki.Leaf("x", dns=("localhost",), server=True),
        pki.Leaf("x", dns=(*one, keys.agent_server_name("b")), client=True),
        pki.Leaf("x", dns=(*one, "localhost"), client=True),
    ):
        put(folder, "a", leaf)
        with pytest.raises(RefusedError, match="who has no certificate"):
            of(folder).opened(of(folder, "a").sign(BODY), "it")


def test_an_agents_certificate_makes_no_others(tmp_path):
    folder = certified(tmp_path / "tls")
    rogue = pki.read_pair(
        (folder / "agent-a.crt").read_bytes(), (folder / "agent-a.key").read_bytes(), "a"
    )
    put(folder, "b", pki.Leaf("x", dns=(keys.agent_server_name("b"),), client=True), rogue)
    signed = of(folder, "b").sign(BODY)
    with pytest.raises(LockedError, match="not known here"):
        of(folder).opened(signed, "it")
    # Not even where its own certificate lies among the authorities.
    bundle = (folder / "ca.crt").read_bytes() + (folder / "agent-a.crt").read_bytes()
    (folder / "ca.crt").write_bytes(bundle)
    with pytest.raises(RefusedError, match="who has no certificate"):
        of(folder).opened(signed, "it")


def test_a_certificate_that_was_renewed_or_ended_still_tells_who_signed(tmp_path):
    folder, begun = tmp_path / "tls", NOW - timedelta(days=300)
    pki.Folder(folder).init(("a",), pki.Validity(leaf=DAY, renew_before=timedelta(0)), begun)
    old = of(folder, "a").sign(BODY)
    put(folder, "a", pki.Leaf("a", dns=(keys.agent_server_name("a"),), client=True))
    new = of(folder, "a").sign(BODY)
    assert new.partition(b"\n")[0][:600] != old.partition(b"\n")[0][:600]
    for signed in (old, new):
        assert of(folder).opened(signed, "it") == (BODY, "a")


def test_a_folder_of_keys_with_the_authority_reads_what_nodes_signed(tls, tmp_path):
    make_folder(tmp_path, "here")
    signed = of(tls, "a").sign(BODY)
    with pytest.raises(RefusedError, match="is not signed"):
        read_folder(tmp_path).opened(signed, "it")
    (tmp_path / "ca.crt").write_bytes((tls / "ca.crt").read_bytes())
    assert read_folder(tmp_path).opened(signed, "it") == (BODY, "a")
    for path in tmp_path.glob("*.pub"):
        path.unlink()
    assert read_folder(tmp_path).opened(signed, "it") == (BODY, "a")


@pytest.mark.parametrize("name", ["agent-a.crt", "agent-a.key", "ca.crt"])
def test_a_file_that_is_missing_or_wrong_is_named(tmp_path, name):
    folder = certified(tmp_path / "tls")
    (folder / "agents-ca.crt").unlink()
    signed = of(folder, "a").sign(BODY)
    for content in (None, b"nothing"):
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        node = of(folder, "a" if "agent" in name else "")
        call = partial(node.opened, signed, "it") if name == "ca.crt" else partial(node.sign, BODY)
        with pytest.raises(ConfigError, match=r"agent-a|ca\.crt|tls_dir"):
            call()


def test_a_key_of_another_kind_is_named(tmp_path):
    folder = certified(tmp_path / "tls")
    other = artifactkeys.generated().signer
    pem = other.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "agent-a.key").write_bytes(pem)
    with pytest.raises(ConfigError, match="no elliptic-curve key"):
        of(folder, "a").sign(BODY)
