from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kybernate.errors import ConfigError
from tests.cluster.fetched import binaries
from tests.cluster.layout import silent

NAMES = ("etcd", "kubectl", "kube-apiserver")


@pytest.fixture
def official(tmp_path, monkeypatch) -> Path:
    """A folder like that of a release: programs that say their version, and checksums."""
    folder = tmp_path / "official"
    folder.mkdir()
    for name in NAMES:
        version = "3.6.4" if name == "etcd" else "v1.34.2"
        _program(folder, name, version)
    monkeypatch.setenv("KYB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KYB_KUBE_BIN", str(folder))
    return folder


def _program(folder: Path, name: str, version: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {name} {version}\n")
    path.chmod(0o755)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / f"{name}.sha256").write_text(f"{digest}  {name}\n")


def test_given_commands_with_right_version_and_checksum_are_taken(official) -> None:
    assert binaries.ensure(NAMES, silent).path("etcd") == official / "etcd"


def test_given_commands_can_come_from_a_url_and_are_kept(official, monkeypatch) -> None:
    monkeypatch.setenv("KYB_KUBE_BIN", official.as_uri())
    found = binaries.ensure(NAMES, silent)
    assert found.path("kubectl").read_bytes() == (official / "kubectl").read_bytes()
    (official / "kubectl").unlink()
    binaries.ensure(NAMES, silent)


def test_a_url_that_answers_nothing_is_named(tmp_path, official, monkeypatch) -> None:
    monkeypatch.setenv("KYB_KUBE_BIN", (tmp_path / "nowhere").as_uri())
    with pytest.raises(ConfigError, match=r"nowhere.*can't be fetched"):
        binaries.ensure(NAMES, silent)


def test_another_version_is_refused(official) -> None:
    _program(official, "kube-apiserver", "v1.33.0")
    with pytest.raises(ConfigError, match=r"must be version v1\.34\.2"):
        binaries.ensure(NAMES, silent)


def test_a_wrong_checksum_is_refused(official) -> None:
    (official / "etcd.sha256").write_text("0" * 64)
    with pytest.raises(ConfigError, match="SHA-256"):
        binaries.ensure(NAMES, silent)


@pytest.mark.parametrize("file", ["etcd.sha256", "etcd"])
def test_a_missing_file_is_named(official, file) -> None:
    (official / file).unlink()
    with pytest.raises(ConfigError, match=f"{file} is missing"):
        binaries.ensure(NAMES, silent)


def test_the_build_is_locked_and_stamped() -> None:
    command = binaries.build_command("kubelet", Path("/out"))
    assert {"-mod=readonly", "-trimpath", "-buildvcs=false"} <= set(command)
    assert "gitVersion=v1.34.2" in binaries.ldflags()
    assert command[-1] == "k8s.io/kubernetes/cmd/kubelet"


def test_the_lock_names_the_versions_that_the_harness_says() -> None:
    lock = (binaries.MODULE / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES_VERSION}" in lock
    assert f"go.etcd.io/etcd/server/v3 v{binaries.ETCD_VERSION}" in lock


def test_before_anything_is_compiled_a_build_takes_what_it_took_elsewhere() -> None:
    forecast = binaries.Forecast({"etcd": 500, "kubectl": 100})
    assert forecast.left(0.0) == pytest.approx(600 * binaries._SECONDS_PER_PACKAGE)


def test_the_speed_so_far_tells_how_long_the_rest_takes() -> None:
    forecast = binaries.Forecast({"etcd": 500, "kubectl": 100})
    for second in range(251):  # the download before it isn't the compiler's time
        forecast.compiled(1000.0 + second)
    assert forecast.left(1250.0) == pytest.approx((600 - 251) * 250 / 251)
    assert forecast.told("etcd", 1250.0) == ("etcd: 251 of 500 packages; about 6 min left for all")


def test_what_was_in_gos_cache_counts_as_built() -> None:
    forecast = binaries.Forecast({"etcd": 500, "kubectl": 100})
    forecast.built("etcd")
    assert forecast.left(5.0) == pytest.approx(100 * binaries._SECONDS_PER_PACKAGE)
    forecast.built("kubectl")
    assert forecast.left(6.0) == 0
