from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.errors import ConfigError
from tests.cluster.spec import ClusterSpec
from tests.cluster.start.preflight import GIB, Machine, check, report

GOOD = Machine(
    system="Linux",
    architecture="x86_64",
    root=True,
    python=(3, 11),
    which=lambda name: f"/bin/{name}",
    free_disk=lambda _path: 100 * GIB,
    free_memory=16 * GIB,
    reachable=lambda _url: True,
    cgroups=True,
    keyring=True,
    to_build=list,
    unpacked=False,
    mirror=lambda: "http://mirror.test/debian",
    go_proxy=lambda: "https://proxy.test",
    modules=lambda _name: True,
    kyb_init=True,
)
SPEC = ClusterSpec()


def _without(*names: str) -> Machine:
    return replace(GOOD, which=lambda name: None if name in names else f"/bin/{name}")


def test_a_good_machine_lacks_nothing() -> None:
    assert check(SPEC, GOOD) == []


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (replace(GOOD, system="Darwin"), "Linux on x86-64"),
        (replace(GOOD, architecture="aarch64"), "Linux on x86-64"),
        (replace(GOOD, root=False), "root"),
        (replace(GOOD, python=(3, 10)), "Python 3.11"),
        (_without("nsenter"), "nsenter"),
        (_without("gcc"), "gcc"),
        (_without("go"), "Go 1.24"),
        (_without("apt-get"), "apt-get"),
        (replace(GOOD, keyring=False), "keys of Debian"),
        (replace(GOOD, cgroups=False), "cgroups"),
        (replace(GOOD, free_disk=lambda _path: GIB), "GiB of disk"),
        (replace(GOOD, free_memory=GIB), "GiB of available memory"),
        (replace(GOOD, reachable=lambda url: "proxy" not in url), "Go module proxy"),
        (replace(GOOD, reachable=lambda url: "mirror" not in url), "Debian mirror"),
        (replace(GOOD, modules=lambda name: name != "grpc"), "grpc"),
        (replace(GOOD, kyb_init=False), "kyb-init"),
    ],
)
def test_what_is_missing_is_named_with_what_mends_it(machine, what) -> None:
    found = check(SPEC, machine)
    assert what in found[0].what
    assert all(one.mend for one in found)


def test_everything_missing_is_told_at_once() -> None:
    bare = replace(GOOD, root=False, which=lambda _name: None, free_memory=0)
    found = check(SPEC, bare)
    text = report(found)
    assert len(found) > 8
    assert f"{len(found)} missing" in text
    assert all(one.what in text and one.mend in text for one in found)


def test_nothing_is_asked_of_the_network_if_all_is_cached() -> None:
    cached = replace(GOOD, to_build=lambda _names: [], unpacked=True, reachable=lambda _url: False)
    assert check(SPEC, cached) == []


def test_go_is_not_needed_for_given_commands() -> None:
    assert check(SPEC, replace(_without("go"), to_build=lambda _names: [])) == []


def test_a_control_plane_alone_needs_no_node_tools() -> None:
    spec = ClusterSpec(control_plane_only=True)
    assert check(spec, _without("nsenter", "apt-get", "ip")) == []


def test_a_host_without_debian_sources_is_told_so() -> None:
    def none() -> str:
        raise ConfigError("/etc/apt", "no Debian mirror found")

    (found,) = check(SPEC, replace(GOOD, mirror=none))
    assert "no Debian mirror found" in found.mend
