from __future__ import annotations

import ssl
import stat
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from kybernate.errors import ConfigError, ConflictError, RetryableError
from kybernate.runtime.background import Background
from kybernate.settings.webhook import WebhookSettings
from webhook.certs import FolderStore, Keeper, Keeping, Material
from webhook.service import LeafContext

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SETTINGS = WebhookSettings(ca_days=100, leaf_days=20, renew_days=5)


class MemoryStore:
    """A store that several keepers share, as replicas share the Secret."""

    def __init__(self) -> None:
        self.kept = Material({}, "0")

    def load(self) -> Material:
        return self.kept

    def save(self, material: Material) -> Material:
        if material.version != self.kept.version:
            raise ConflictError("changed meanwhile")
        self.kept = Material(dict(material.files), str(int(self.kept.version) + 1))
        return self.kept


class Published:
    """The API server's side: what bundle is in force."""

    def __init__(self) -> None:
        self.bundle = b""
        self.fails = False

    def publish(self, bundle: bytes) -> bool:
        if self.fails:
            raise RetryableError("the API server is away")
        fresh = bundle == self.bundle
        self.bundle = bundle
        return fresh


class World:
    """One store, one API server, and the leaf that each keeper serves."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.api = Published()
        self.served: dict[str, bytes] = {}

    def keeper(self, name: str = "a") -> Keeper:
        def use(certificate: bytes, _key: bytes) -> None:
            self.served[name] = certificate

        return Keeper(SETTINGS, self.store, self.api.publish, use)

    def trusted(self, name: str = "a", bundle: bytes | None = None) -> bool:
        leaf = x509.load_pem_x509_certificate(self.served[name])
        for authority in x509.load_pem_x509_certificates(bundle or self.api.bundle):
            if authority.subject == leaf.issuer:
                try:
                    leaf.verify_directly_issued_by(authority)
                except Exception:  # noqa: BLE001, S112 - another authority of the same name
                    continue
                return True
        return False


def ends(pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def test_the_first_pass_makes_publishes_and_serves() -> None:
    world = World()
    world.keeper().tick(NOW)
    assert world.trusted()
    leaf = x509.load_pem_x509_certificate(world.served["a"])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kyb-webhook.kyb-system.svc" in names.get_values_for_type(x509.DNSName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_further_passes_change_nothing() -> None:
    world = World()
    keeper = world.keeper()
    keeper.tick(NOW)
    version, leaf = world.store.kept.version, world.served["a"]
    for hours in range(3):
        keeper.tick(NOW + timedelta(hours=hours))
    assert (world.store.kept.version, world.served["a"]) == (version, leaf)


def test_a_bundle_that_was_changed_is_put_back() -> None:
    world = World()
    keeper = world.keeper()
    keeper.tick(NOW)
    world.api.bundle = b"other"
    keeper.tick(NOW)
    assert world.trusted()


def test_the_leaf_is_renewed_before_its_end() -> None:
    world = World()
    keeper = world.keeper()
    keeper.tick(NOW)
    first = world.served["a"]
    keeper.tick(NOW + 14 * DAY)
    assert world.served["a"] == first
    keeper.tick(NOW + 16 * DAY)
    assert ends(world.served["a"]) == NOW + 36 * DAY
    assert world.trusted()


def test_a_new_authority_is_published_beside_the_old_before_its_leaf_is_served() -> None:
    world = World()
    keeper, other = world.keeper("a"), world.keeper("b")
    keeper.tick(NOW)
    other.tick(NOW)
    old_bundle = world.api.bundle
    for day in range(10, 96, 10):
        keeper.tick(NOW + day * DAY)
    before = world.served["a"]
    keeper.tick(NOW + 96 * DAY)
    assert len(x509.load_pem_x509_certificates(world.api.bundle)) == 2
    assert world.served["a"] == before
    # An API server that hasn't seen the new bundle yet trusts what is served, too.
    assert world.trusted(bundle=old_bundle)
    for seconds in (1, 59):
        other.tick(NOW + 96 * DAY + timedelta(seconds=seconds))
        keeper.tick(NOW + 96 * DAY + timedelta(seconds=seconds))
        assert world.served["a"] == world.served["b"] == before
    keeper.tick(NOW + 96 * DAY + timedelta(seconds=60))
    other.tick(NOW + 96 * DAY + timedelta(seconds=60))
    assert world.served["a"] == world.served["b"] != before
    assert world.trusted("a")
    assert not world.trusted(bundle=old_bundle)


def test_a_replica_that_starts_meanwhile_waits_too() -> None:
    world = World()
    world.keeper().tick(NOW)
    old_bundle, kept = world.api.bundle, world.store.kept
    world.store.kept = Material({k: v for k, v in kept.files.items() if k != "ca.key"}, "7")
    world.keeper().tick(NOW)
    late = world.keeper("late")
    late.tick(NOW)
    assert world.trusted("late", old_bundle)
    late.tick(NOW + timedelta(minutes=1))
    assert not world.trusted("late", old_bundle)
    assert world.trusted("late")


def test_an_emptied_store_is_filled_without_a_gap() -> None:
    world = World()
    keeper, other = world.keeper("a"), world.keeper("b")
    keeper.tick(NOW)
    other.tick(NOW)
    old_bundle = world.api.bundle
    world.store.kept = Material({}, "7")
    for seconds in range(0, 60, 10):
        for one in (keeper, other):
            one.tick(NOW + timedelta(seconds=seconds))
        for name in ("a", "b"):
            assert world.trusted(name, old_bundle)
            assert world.trusted(name)
    keeper.tick(NOW + timedelta(minutes=1))
    other.tick(NOW + timedelta(minutes=1))
    assert world.served["a"] == world.served["b"]
    assert not world.trusted("a", old_bundle)


def test_the_bundle_does_not_grow_for_ever() -> None:
    world = World()
    keeper = world.keeper()
    for minute in range(0, 40, 2):
        kept = world.store.kept
        files = {name: text for name, text in kept.files.items() if name != "ca.key"}
        world.store.kept = Material(files, kept.version)
        keeper.tick(NOW + timedelta(minutes=minute))
        keeper.tick(NOW + timedelta(minutes=minute + 1))
        assert world.trusted()
    assert len(x509.load_pem_x509_certificates(world.api.bundle)) == 8


def test_two_replicas_agree_on_one_authority() -> None:
    world = World()
    first, second = world.keeper("a"), world.keeper("b")
    first.tick(NOW)
    second.tick(NOW)
    assert world.served["a"] == world.served["b"]


def test_who_writes_second_is_told_and_reads_again() -> None:
    store = MemoryStore()
    stale = store.load()
    store.save(stale)
    with pytest.raises(ConflictError):
        store.save(stale)


def test_without_the_api_server_no_leaf_is_switched() -> None:
    world = World()
    world.api.fails = True
    with pytest.raises(RetryableError):
        world.keeper().tick(NOW)
    assert world.served == {}
    world.api.fails = False
    world.keeper().tick(NOW)
    assert world.trusted()


def test_damaged_material_is_replaced_or_named() -> None:
    world = World()
    world.keeper().tick(NOW)
    files = dict(world.store.kept.files)
    world.store.kept = Material({**files, "tls.crt": b"x"}, world.store.kept.version)
    world.keeper().tick(NOW)
    assert world.trusted()
    world.store.kept = Material({**files, "ca.crt": b"x"}, world.store.kept.version)
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        world.keeper().tick(NOW)


def test_the_folder_keeps_keys_private(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    world = World()
    Keeper(SETTINGS, FolderStore(folder), world.api.publish, lambda *_: None).tick(NOW)
    assert {file.name for file in folder.iterdir()} == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    version = world.api.bundle
    Keeper(SETTINGS, FolderStore(folder), world.api.publish, lambda *_: None).tick(NOW)
    assert world.api.bundle == version


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "certs").write_text("")
    with pytest.raises(ConfigError, match="cert_dir"):
        FolderStore(tmp_path / "certs").load()


def test_the_thread_reports_its_problem_and_recovers() -> None:
    world = World()
    world.api.fails = True
    keeping = Keeping(world.keeper(), every=0.01)
    assert keeping.problem == "no certificate yet"
    threads = Background(certificates=keeping.run)
    threads.start()
    _until(lambda: keeping.problem == "certificates: the API server is away")
    world.api.fails = False
    _until(lambda: keeping.problem is None)
    threads.stop()
    assert world.served


def _until(true: object, limit: int = 1000) -> None:
    from threading import Event  # noqa: PLC0415

    assert callable(true)
    for _ in range(limit):
        if true():
            return
        Event().wait(0.01)
    raise AssertionError("it did not come true")


def test_the_leaf_is_exchanged_in_place_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leaf = LeafContext()
    served: list[bytes] = []
    for _ in range(2):
        world = World()

        def use(certificate: bytes, key: bytes) -> None:
            leaf.use(certificate, key)
            served.append(_handshake(leaf.context))

        Keeper(SETTINGS, world.store, world.api.publish, use).tick(datetime.now(UTC))
    assert served[0] != served[1]
    assert list(tmp_path.iterdir()) == []


def _handshake(server: ssl.SSLContext) -> bytes:
    """The certificate that a client of this context is shown."""
    client = ssl.create_default_context()
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server)
    right = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (left, right):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = left.getpeercert(binary_form=True)
    assert shown
    return shown
