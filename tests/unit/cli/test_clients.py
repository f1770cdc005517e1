"""`kybernate clients`: records in a folder, and in the Secret of an API server."""

from __future__ import annotations

import base64

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kybernate.adapters.clientstore import Secret
from kybernate.cli.clients import command
from kybernate.core.clients import digest_of, key_of, read, record
from kybernate.errors import ConfigError, ConflictError, NotFoundError

NAMESPACES = st.none() | st.frozensets(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True), min_size=1
)


@pytest.fixture
def run(tmp_path):
    """Run a command on a folder; what it prints on standard output."""

    def act(*arguments, status=0):
        folder = str(tmp_path / "clients")
        done = CliRunner().invoke(command, [*arguments, "--dir", folder])
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else done.output

    return act


def kept(tmp_path):
    folder = tmp_path / "clients"
    return {file.name: file.read_text() for file in folder.iterdir()} if folder.exists() else {}


@given(NAMESPACES, st.booleans())
def test_a_record_is_read_as_it_was_written_and_holds_no_key(namespaces, by_key):
    key = key_of(b"\x07" * 32)
    made = record("shop-1", namespaces, digest_of(key) if by_key else None, "2026-01-01")
    assert read("shop-1", made.text()) == made
    assert key not in made.text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "isn't JSON"),
        ("[]", "namespaces"),
        ('{"namespaces": "*", "certificate": true}', "namespaces"),
        ('{"namespaces": [], "certificate": true}', "namespaces"),
        ('{"namespaces": ["A b"], "certificate": true}', "namespace"),
        ('{"namespaces": ["*", "a"], "certificate": true}', "namespace"),
        ('{"namespaces": ["*"]}', "keySha256"),
        ('{"namespaces": ["*"], "certificate": false}', "keySha256"),
        ('{"namespaces": ["*"], "keySha256": "x"}', "64"),
        ('{"namespaces": ["*"], "keySha256": 1}', "keySha256"),
        ('{"namespaces": ["*"], "keySha256": "' + "a" * 64 + '", "certificate": true}', "either"),
    ],
)
def test_a_record_that_is_wrong_lets_nobody_in(text, problem):
    with pytest.raises(ConfigError, match=problem):
        read("x", text)


def test_a_field_of_a_newer_version_is_ignored():
    text = '{"version": 9, "new": {}, "namespaces": ["*"], "certificate": true}'
    assert read("x", text).namespaces is None


def test_a_key_is_printed_once_and_kept_as_its_digest(run, tmp_path):
    key = run("add", "shop", "--of", "shop", "--of", "lab").strip()
    made = read("shop", kept(tmp_path)["shop"])
    assert (made.namespaces, made.key_sha256) == ({"shop", "lab"}, digest_of(key))
    assert key not in kept(tmp_path)["shop"]
    assert (tmp_path / "clients" / "shop").stat().st_mode & 0o777 == 0o600
    assert run("list").startswith("shop\tkey\tlab shop\t20")


def test_a_client_is_replaced_only_if_that_is_said(run, tmp_path):
    old = run("add", "shop", "--of", "shop")
    assert "--replace" in run("add", "shop", "--of", "shop", status=1)
    before = kept(tmp_path)
    assert run("add", "shop", "--of-all", "--replace", "--dry-run").startswith("would replace")
    assert kept(tmp_path) == before
    assert run("add", "shop", "--of-all", "--replace") != old
    assert "all namespaces" in run("list")


def test_revoking_has_a_dry_run_and_names_who_is_unknown(run, tmp_path):
    run("add", "shop", "--of", "shop", "--certificate")
    assert "nobody, x" in run("revoke", "shop", "x", "nobody", status=1)
    assert run("revoke", "shop", "--dry-run") == "would revoke shop\n"
    assert list(kept(tmp_path)) == ["shop"]
    assert run("revoke", "shop") == "revoked shop\n"
    assert kept(tmp_path) == {}


@pytest.mark.parametrize(
    "arguments",
    [("x",), ("x", "--of", "a", "--of-all"), ("../x", "--of", "a"), ("x", "--of", "A/b")],
)
def test_what_is_wrong_is_said_and_nothing_kept(tmp_path, arguments):
    done = CliRunner().invoke(command, ["add", *arguments, "--dir", str(tmp_path / "clients")])
    assert done.exit_code != 0
    assert kept(tmp_path) == {}


class ApiServer:
    """One Secret, as an API server keeps it."""

    def __init__(self):
        self.secret = None

    def get(self, path):
        if self.secret is None:
            raise NotFoundError(path)
        return self.secret

    def post(self, path, body):
        if self.secret is not None:
            raise ConflictError(path)
        data = dict(body["data"])
        self.secret = {"metadata": {**body["metadata"], "resourceVersion": "1"}, "data": data}
        return self.secret

    def patch(self, path, body):
        found = self.secret["metadata"]
        if body["metadata"]["resourceVersion"] != found["resourceVersion"]:
            raise ConflictError(path)
        found["resourceVersion"] += "1"
        for name, value in body["data"].items():
            if value is None:
                self.secret["data"].pop(name)
            else:
                self.secret["data"][name] = value
        return self.secret


def test_the_secret_is_made_changed_and_guarded_against_others():
    server = ApiServer()
    one, two = Secret(server), Secret(server)
    assert one.read() == two.read() == {}
    one.write("a", "1")
    with pytest.raises(ConflictError, match="somebody else"):
        two.write("b", "2")
    two.read()
    two.write("b", "2")
    two.write("a", None)
    assert one.read() == {"b": "2"}
    assert server.secret["data"] == {"b": base64.b64encode(b"2").decode()}
