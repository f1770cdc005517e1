"""What the tests need is built before them; what can't be had is told."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from images.cache import REPOSITORY, silent
from kybernate.errors import KybernateError
from tests.kit import __main__ as kit
from tests.kit import gobuild, podowners
from tests.kit.servers import s3


def test_what_cannot_be_had_is_told_and_the_rest_is_made(monkeypatch):
    made = []

    def missing(_):
        raise KybernateError("Go is missing")

    monkeypatch.setattr(kit, "NEEDS", {"one": made.append, "two": missing, "three": made.append})
    result = CliRunner().invoke(kit.main)
    assert result.exit_code == 0
    assert "two can't be had here: Go is missing" in result.output
    assert len(made) == 2


def test_without_go_there_is_no_s3_server_and_a_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(gobuild, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(gobuild.shutil, "which", lambda _: None)
    with pytest.raises(KybernateError, match="Go is missing"):
        s3.ensure(silent)


@pytest.mark.parametrize("name", podowners.SOURCES)
def test_the_page_names_the_version_of_a_controller_that_is_built(name):
    source = podowners.SOURCES[name]
    locked = (source.program.folder / "go.mod").read_text()
    (version,) = re.findall(rf"^\s*{re.escape(source.module)} v(\S+)", locked, re.MULTILINE)
    page = REPOSITORY / "docs" / "how-to" / "operate" / "other-controllers.md"
    assert f" {version}" in page.read_text()


@pytest.mark.parametrize("refused", ["delete", "apply"])
def test_a_controller_ends_though_the_api_server_is_gone(monkeypatch, tmp_path, refused):
    """At its close, and where its webhooks can't be put there."""
    hooks = {"kind": "ValidatingWebhookConfiguration", "metadata": {}, "webhooks": []}
    (tmp_path / "hooks.yaml").write_text(yaml.safe_dump(hooks))
    program, pid = tmp_path / "program", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    program.chmod(0o755)
    fetched = SimpleNamespace(ensure=lambda _: program, module=lambda _: tmp_path)
    source = podowners.Source(fetched, "m", "crd.yaml", "hooks.yaml", "group", "label")
    monkeypatch.setitem(podowners.SOURCES, "one", source)
    monkeypatch.setattr(podowners.Owner, "_ready", lambda _: pid.exists() and pid.read_text())

    def kubectl(*words):
        if words[0] == refused and words[-1].endswith("webhooks.yaml"):
            raise KybernateError("the API server is gone")

    cluster = SimpleNamespace(kubectl=kubectl, kubeconfig=tmp_path, establish=lambda _: None)
    with pytest.raises(KybernateError, match="is gone"):
        podowners.Owner(cluster, tmp_path / "folder", "one").close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_programs_of_one_folder_are_kept_apart():
    places = {one.program.binary for one in podowners.SOURCES.values()}
    assert len(places) == len(podowners.SOURCES)
