"""Keys: who may sign, who is believed, what opens what."""

from __future__ import annotations

import os
import stat

import pytest

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.keys.artifactkeys import (
    generated,
    key_id,
    make_folder,
    public_pem,
    read_folder,
)
from kybernate.errors import ConfigError, LockedError, RefusedError


def test_a_folder_is_made_once_and_read(tmp_path):
    assert make_folder(tmp_path / "k", "here") == ["sign.key", "trust-here.pub", "wrap-1.key"]
    assert make_folder(tmp_path / "k", "here") == []
    keys = read_folder(tmp_path / "k")
    assert keys.opened(keys.sign(b"body"), "it") == (b"body", "")
    assert stat.S_IMODE((tmp_path / "k" / "sign.key").stat().st_mode) == 0o600


def test_what_was_wrapped_by_an_older_key_still_opens(tmp_path):
    make_folder(tmp_path, "here")
    by, wrapped = read_folder(tmp_path).kms.wrap(b"s" * 32, "team-a")
    (tmp_path / "wrap-2.key").write_text(os.urandom(32).hex())
    keys = read_folder(tmp_path).kms
    assert keys.unwrap(by, wrapped, "team-a") == b"s" * 32
    assert keys.wrap(b"s" * 32, "team-a")[0] != by
    with pytest.raises(RefusedError, match="was not wrapped"):
        keys.unwrap(by, wrapped, "team-b")
    (tmp_path / "wrap-1.key").unlink()
    with pytest.raises(LockedError, match="put it back"):
        read_folder(tmp_path).kms.unwrap(by, wrapped, "team-a")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("wrap-1.key", "zz", "64 hexadecimal digits"),
        ("wrap-1.key", "00", "64 hexadecimal digits"),
        ("sign.key", "x", "no private key"),
        ("trust-here.pub", "x", "no public key"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, name, content, said):
    make_folder(tmp_path, "here")
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_folder(tmp_path)


def test_a_folder_without_trust_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="kybernate artifacts keys"):
        read_folder(tmp_path)
    with pytest.raises(ConfigError, match="can't be read"):
        read_folder(tmp_path / "none")


@pytest.mark.parametrize("cut", [0, 10, 100, 160])
def test_a_signature_cut_short_is_none(cut):
    keys = artifactkeys.generated()
    with pytest.raises(RefusedError):
        keys.opened(keys.sign(b"body")[:cut], "it")


def test_what_a_key_signed_that_is_not_here_waits_for_it(tmp_path):
    make_folder(tmp_path, "here")
    signed = read_folder(tmp_path).sign(b"body")
    public = (tmp_path / "trust-here.pub").read_bytes()
    (tmp_path / "trust-here.pub").write_bytes(public_pem(generated().signer.public_key()))
    with pytest.raises(LockedError, match=r"put its public key .* as trust-NAME.pub. It is kept"):
        read_folder(tmp_path).opened(signed, "it")
    (tmp_path / "trust-old.pub").write_bytes(public)
    assert read_folder(tmp_path).opened(signed, "it") == (b"body", "")


def test_a_changed_name_of_a_signer_is_no_missing_key():
    keys = generated()
    signed = keys.sign(b"body")
    at = signed.index(key_id(keys.signer.public_key()).encode())
    other = b"0" if signed[at : at + 1] != b"0" else b"1"
    with pytest.raises(RefusedError, match="changed after it was signed"):
        keys.opened(signed[:at] + other + signed[at + 1 :], "it")


def test_a_name_of_a_wrapping_key_does_not_tell_it():
    key = os.urandom(32)
    assert len(artifactkeys.wrapping_id(key)) == 16
    assert key.hex()[:16] != artifactkeys.wrapping_id(key)
