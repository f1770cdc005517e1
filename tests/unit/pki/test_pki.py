from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from kybernate.adapters.pki import Folder, Leaf, Validity, issue, make_authority, read_pair
from kybernate.cli import main
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 6, 1, tzinfo=UTC)
VALIDITY = Validity()


def made(folder: Path, nodes: list[str], now: datetime = NOW) -> dict[str, str | None]:
    return {step.name: step.reason for step in Folder(folder).init(nodes, VALIDITY, now)}


def test_init_makes_all_files_with_private_keys(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    assert set(made(folder, ["n1"]).values()) == {"missing"}
    names = {
        "ca",
        "agents-ca",
        "proxy",
        "scheduler",
        "extender",
        "controller",
        "registry",
        "agent-n1",
    }
    assert {file.name for file in folder.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("crt", "key")
    }
    for name in names:
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_second_init_keeps_files_and_adds_nodes(tmp_path: Path) -> None:
    made(tmp_path, ["n1"])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert made(tmp_path, ["n2"]) == {
        "ca": None,
        "agents-ca": None,
        "proxy": None,
        "scheduler": None,
        "extender": None,
        "controller": None,
        "registry": None,
        "agent-n1": None,
        "agent-n2": "missing",
    }
    assert before.items() <= {file.name: file.read_bytes() for file in tmp_path.iterdir()}.items()


def test_what_ends_soon_is_renewed_also_for_nodes_not_named(tmp_path: Path) -> None:
    made(tmp_path, ["n1"])
    later = made(tmp_path, [], NOW + timedelta(days=350))
    assert (later.pop("ca"), later.pop("agents-ca")) == (None, None)
    assert set(later.values()) == {"ends on 2027-06-01"}
    assert set(made(tmp_path, [], NOW + timedelta(days=350)).values()) == {None}


def test_an_authority_that_ends_renews_everything(tmp_path: Path) -> None:
    made(tmp_path, ["n1"])
    reasons = made(tmp_path, [], NOW + timedelta(days=3640))
    assert (reasons.pop("ca"), reasons.pop("agents-ca")) == ("ends on 2036-05-29",) * 2
    assert set(reasons.values()) == {"not signed by this authority"}


def test_damaged_leaf_is_made_anew_but_a_damaged_authority_is_left_alone(tmp_path: Path) -> None:
    made(tmp_path, [])
    (tmp_path / "proxy.key").write_bytes((tmp_path / "scheduler.key").read_bytes())
    (tmp_path / "scheduler.crt").write_text("nonsense")
    (tmp_path / "extender.key").unlink()
    reasons = made(tmp_path, [])
    assert "not that of the certificate" in str(reasons["proxy"])
    assert "PEM" in str(reasons["scheduler"])
    assert reasons["extender"] == "missing"
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key: can't be read"):
        made(tmp_path, [])
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        made(tmp_path, [])


def test_a_crash_between_key_and_certificate_is_mended(tmp_path: Path) -> None:
    made(tmp_path, [])
    for name in ("ca", "proxy"):
        (tmp_path / f"{name}.crt").unlink()
    reasons = made(tmp_path, [])
    assert reasons["ca"] == "missing certificate"
    assert reasons["proxy"] == "missing"
    assert reasons["scheduler"] == "not signed by this authority"


@pytest.mark.parametrize("node", ["", "../x", "N1", "a_b", "-a", "a" * 250])
def test_names_that_no_node_has_are_refused(tmp_path: Path, node: str) -> None:
    with pytest.raises(ConfigError, match="--node"):
        made(tmp_path, [node])


def test_a_long_node_name_gets_a_certificate_with_its_full_name(tmp_path: Path) -> None:
    node = "ip-10-0-0-1." + "a" * 60 + ".example"
    made(tmp_path, [node])
    entries = {entry.name: entry for entry in Folder(tmp_path).show(VALIDITY, NOW)}
    assert entries[f"agent-{node}"].names == (f"{node}.agent.kyb.ai",)
    assert set(made(tmp_path, []).values()) == {None}


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("")
    with pytest.raises(ConfigError, match="pki"):
        made(tmp_path / "pki", [])


def test_keys_of_another_kind_are_refused() -> None:
    pair = make_authority("a", timedelta(days=1), NOW)
    ed25519 = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIGKxMpHvF2S2rTCpaUAh1hYsB8Lx2p2fX3yX4i3pZg3u
-----END PRIVATE KEY-----
"""
    with pytest.raises(ConfigError, match="elliptic"):
        read_pair(pair.certificate_pem, ed25519, "x")


def test_a_leaf_never_outlives_its_authority() -> None:
    authority = make_authority("a", timedelta(days=10), NOW)
    leaf = issue(authority, Leaf("x", server=True), timedelta(days=365), NOW)
    assert leaf.certificate.not_valid_after_utc == NOW + timedelta(days=10)


def _serve_once(context: ssl.SSLContext, listener: socket.socket, seen: list[object]) -> None:
    connection, _ = listener.accept()
    with connection:
        try:
            with context.wrap_socket(connection, server_side=True) as tls:
                seen.append(tls.getpeercert())
                tls.sendall(b"ok")
        except OSError as error:
            seen.append(error)


def _call(folder: Path, client: str, server: str, name: str) -> tuple[bytes, list[object]]:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(folder / f"{server}.crt", folder / f"{server}.key")
    calling = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    calling.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
    seen: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_once, args=(serving, listener, seen))
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=5) as plain,
                calling.wrap_socket(plain, server_hostname=name) as tls,
            ):
                return tls.recv(10), seen
        finally:
            thread.join(5)


@pytest.mark.parametrize(
    ("client", "server", "name"),
    [
        ("proxy", "agent-n1", "n1.agent.kyb.ai"),
        ("scheduler", "extender", "kyb-extender.kyb-system.svc"),
        ("scheduler", "extender", "127.0.0.1"),
        ("scheduler", "extender", "localhost"),
        ("controller", "registry", "kyb-registry.kyb-system.svc"),
    ],
)
def test_mutual_tls_works(tmp_path: Path, client: str, server: str, name: str) -> None:
    Folder(tmp_path).init(["n1"], VALIDITY, datetime.now(UTC))
    answer, seen = _call(tmp_path, client, server, name)
    assert answer == b"ok"
    assert f"kyb-{client}" in str(seen[0])


def test_another_agents_name_and_a_servers_certificate_as_client_are_rejected(
    tmp_path: Path,
) -> None:
    Folder(tmp_path).init(["n1", "n2"], VALIDITY, datetime.now(UTC))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _call(tmp_path, "proxy", "agent-n2", "n1.agent.kyb.ai")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on who closes first
        _call(tmp_path, "extender", "agent-n1", "n1.agent.kyb.ai")


def test_a_certificate_for_fewer_uses_is_made_anew(tmp_path: Path) -> None:
    """As an agent's of the time before it called the registry."""
    made(tmp_path, ["n1"])
    authority = Folder(tmp_path).authority()
    before = Leaf("n1.agent.kyb.ai", dns=("n1.agent.kyb.ai",), server=True)
    pair = issue(authority, before, timedelta(days=365), NOW)
    (tmp_path / "agent-n1.key").write_bytes(pair.key_pem)
    (tmp_path / "agent-n1.crt").write_bytes(pair.certificate_pem)
    assert made(tmp_path, [])["agent-n1"] == "made for other uses"
    assert made(tmp_path, [])["agent-n1"] is None


def test_command_line(tmp_path: Path) -> None:
    run = CliRunner().invoke
    first = run(main, ["pki", "init", "--dir", str(tmp_path), "--node", "n1"])
    assert (first.exit_code, "agent-n1: made (missing)" in first.output) == (0, True)
    assert "agent-n1: kept" in run(main, ["pki", "init", "--dir", str(tmp_path)]).output
    shown = run(main, ["pki", "show", "--dir", str(tmp_path)]).output.splitlines()
    assert [line.split("\t")[1] for line in shown[:3]] == ["kyb-ca", "kyb-agents-ca", "kyb-proxy"]
    assert all(line.endswith("\tok") for line in shown)
    secret = yaml.safe_load(run(main, ["pki", "secret", "--dir", str(tmp_path)]).output)
    assert secret["metadata"] == {"name": "kyb-ca", "namespace": "kyb-system"}
    assert set(secret["data"]) == {"ca.crt", "ca.key"}
    secret = yaml.safe_load(run(main, ["pki", "secret", "--agents", "--dir", str(tmp_path)]).output)
    assert secret["metadata"]["name"] == "kyb-agents-ca"
    assert set(secret["data"]) == {"agents-ca.crt", "agents-ca.key"}


def test_errors_are_one_line_and_a_status(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pki", "show", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "kybernate pki init" in result.output


def test_help_teaches() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert {"pki", "states"} <= set(result.output.split())
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2


def test_states_prints_the_table() -> None:
    assert "stateDiagram" in CliRunner().invoke(main, ["states"]).output
