"""Which error of ours an HTTP answer becomes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.k8s import Api, drop_managed_fields, error_for
from kybernate.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RefusedError),
        (401, RefusedError),
        (403, RefusedError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, ConflictError),
        (422, RefusedError),
        (429, RetryableError),
        (500, RetryableError),
        (503, RetryableError),
        (504, RetryableError),
    ],
)
def test_the_status_decides(status: int, error: type[Exception]) -> None:
    found = error_for(status, b'{"kind":"Status","message":"pods is forbidden"}', "GET /x")
    assert type(found) is error
    assert str(found) == f"GET /x: pods is forbidden (HTTP {status})"


def test_the_server_says_when_to_try_again() -> None:
    found = error_for(429, b'{"message":"slow","details":{"retryAfterSeconds":7}}', "GET /x")
    assert isinstance(found, RetryableError)
    assert found.delay == 7


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff"])
def test_any_body_will_do(body: bytes) -> None:
    assert "GET /x: " in str(error_for(502, body, "GET /x"))


def test_missing_credentials_name_the_setting(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no: kubeconfig")
    for path in (tmp_path / "absent", broken):
        with pytest.raises(ConfigError, match="kubeconfig: can't read credentials"):
            Api(path, "test")


def test_without_a_service_account_a_kubeconfig_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="no kubeconfig is set"):
        Api(None, "test")


def test_nobody_listening_may_pass(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        '{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],'
        '"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:9"}}],'
        '"users":[{"name":"u","user":{"token":"t"}}]}'
    )
    with pytest.raises(RetryableError) as error:
        Api(path, "test").get("/healthz", timeout=2)
    assert str(error.value) == (
        "GET /healthz: no answer from the API server http://127.0.0.1:9: Failed to establish a new "
        "connection: [Errno 111] Connection refused"
    )


def test_importing_the_adapter_is_cheap() -> None:
    code = "import sys, kybernate.adapters.k8s; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_managed_fields_are_dropped() -> None:
    item = {"metadata": {"name": "x", "managedFields": [1]}, "spec": {}}
    assert drop_managed_fields(item) == {"metadata": {"name": "x"}, "spec": {}}
    assert drop_managed_fields({}) == {}
