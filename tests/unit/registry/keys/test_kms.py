"""Which keys wrap, by the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.errors import ConfigError, KybernateError
from kybernate.settings.registry import RegistrySettings
from registry.keys.kms import open_kms, tried
from tests.kit.servers import softhsm

ROOT = Path(__file__).parents[4]


def settings(**given: Any) -> RegistrySettings:
    return RegistrySettings.model_validate(given)


def write_key(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"wrap-{number}.key").write_text(os.urandom(32).hex())


def test_the_highest_file_wraps_and_the_others_still_open(tmp_path: Path) -> None:
    write_key(tmp_path, 9)
    by, wrapped = open_kms(settings(wrap_keys=str(tmp_path))).wrap(b"s" * 32, "x")
    write_key(tmp_path, 10)
    kms = open_kms(settings(wrap_keys=str(tmp_path)))
    assert tried(kms) == kms.newest != by
    assert kms.unwrap(by, wrapped, "x") == b"s" * 32
    with pytest.raises(ConfigError, match="next higher N"):
        kms.renew()


def test_without_files_there_is_no_key(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        kms = open_kms(settings(wrap_keys=str(folder)))
        assert kms.newest == ""
        with pytest.raises(ConfigError, match=r"wrap-1\.key"):
            tried(kms)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "pkcs11_module"),
        ({"pkcs11_module": "/none.so"}, "pkcs11_token"),
        ({"pkcs11_module": "/none.so", "pkcs11_token": "t"}, "pkcs11_pin"),
        ({"pkcs11_module": "/none.so", "pkcs11_token": "t", "pkcs11_pin": "1"}, "pkcs11_module"),
    ],
)
def test_what_a_token_needs_is_named(given: dict[str, str], field: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_kms(settings(kms="pkcs11", wrap_keys=str(tmp_path), **given))
    assert caught.value.field == field


def test_a_key_that_does_not_open_what_it_wrapped_is_told() -> None:
    class Forgets(WrapKeys):
        def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
            return WrapKeys.unwrap(self, by, wrapped, bound_to + "?")

    with pytest.raises(ConfigError, match="does not open"):
        tried(Forgets((os.urandom(32),)))


@pytest.mark.slow
def test_with_a_token_what_files_wrapped_still_opens(tmp_path: Path) -> None:
    """As the program does it: a new installation's first key, and the next one."""
    try:
        token = softhsm.make_token(tmp_path / "hsm")
    except KybernateError as error:
        pytest.skip(f"no SoftHSM2 here: {error}")
    write_key(tmp_path / "files", 1)
    old = open_kms(settings(wrap_keys=str(tmp_path / "files"))).wrap(b"s" * 32, "x")
    environ = {
        **os.environ,
        **token.environ,
        "KYB_REGISTRY_KMS": "pkcs11",
        "KYB_REGISTRY_WRAP_KEYS": str(tmp_path / "files"),
        "KYB_REGISTRY_PKCS11_MODULE": str(token.module),
        "KYB_REGISTRY_PKCS11_TOKEN": softhsm.LABEL,
        "KYB_REGISTRY_PKCS11_PIN": softhsm.PIN,
    }

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *argv],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    empty = run("-m", "registry", "kms")
    assert empty.returncode == 1
    assert "kms --new-key" in empty.stderr
    assert "made key" in run("-m", "registry", "kms", "--new-key").stdout
    first = run("-m", "registry", "kms").stdout.split()[1]
    assert run("-m", "registry", "kms", "--new-key").stdout.split()[-8] != first
    script = """
import os, sys
from kybernate.runtime.load import load
from kybernate.settings.registry import RegistrySettings
from registry.keys.kms import open_kms
kms = open_kms(load(RegistrySettings, "KYB_REGISTRY", {}, os.environ, None))
assert kms.unwrap(sys.argv[1], sys.argv[2], "x") == b"s" * 32
assert kms.wrap(b"s" * 32, "x")[0] == kms.newest != sys.argv[1]
"""
    done = run("-c", script, *old)
    assert done.returncode == 0, done.stderr
