"""What images hold, as far as it can be said without building one."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from images import containerfile, userland, wheels
from images.cache import REPOSITORY, digest_of
from images.recipes import NOBODY, RECIPES, ROOT, version
from kybernate.errors import ConfigError

LOCK = """\
# made by a tool
flask==3.1.3 \\
    --hash=sha256:aa
    # via kybernate (pyproject.toml)
grpcio==1.85.1 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
    # via
    #   kybernate (pyproject.toml)
    #   grpcio-tools
typing_extensions==4.0 ; python_version < '3.13' \\
    --hash=sha256:dd
    # via grpcio
"""


def test_a_lock_is_cut_into_requirements_with_who_wants_them() -> None:
    found = wheels.locked(LOCK)
    lines, wanted_by = found["grpcio"]
    assert lines.splitlines()[0] == "grpcio==1.85.1 \\"
    assert "via" not in lines
    assert wanted_by == {"kybernate", "grpcio-tools"}
    assert wheels.closure(found, ["grpcio"]) == {"grpcio", "typing-extensions"}


def test_a_lock_without_requirements_and_an_unlocked_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="make lock"):
        wheels.locked("# nothing\n")
    with pytest.raises(ConfigError, match="numpy"):
        wheels.closure(wheels.locked(LOCK), ["numpy"])


def test_every_dependency_of_the_project_is_in_exactly_one_layer_of_its_images() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for recipe in RECIPES.values():
        layers = [set(wheels.locked(wheels.requirements(name))) for name in recipe.layers]
        assert sum(map(len, layers)) == len(set().union(*layers))
        wanted = project["dependencies"] if recipe.layers else []
        for extra in set(recipe.layers) - {wheels.COMMON, wheels.CLIENT}:
            wanted = wanted + project["optional-dependencies"][extra]
        if wheels.CLIENT not in recipe.layers:
            wanted = [one for one in wanted if not one.startswith("kubernetes")]
        names = {re.split(r"[\[>]", one)[0].strip().lower().replace("_", "-") for one in wanted}
        assert names <= set().union(*layers)


def test_the_plugin_has_no_kubernetes_client() -> None:
    plugin = RECIPES["device-plugin"]
    assert wheels.CLIENT not in plugin.layers
    assert not any("k8s" in str(path) for path in plugin.sources())


def test_images_hold_our_code_but_no_test_equipment() -> None:
    for recipe in RECIPES.values():
        places = [path.relative_to(REPOSITORY).parts for path in recipe.sources()]
        assert {parts[0] for parts in places} <= {code.partition("/")[0] for code in recipe.code}
        assert recipe.name == "sample" or "tests" not in {parts[0] for parts in places}
        assert ("kybernate", "local", "simgpu") not in {parts[:3] for parts in places}


def test_only_the_node_side_is_root_and_says_why() -> None:
    users = {recipe.name: recipe.user for recipe in RECIPES.values()}
    assert {name for name, user in users.items() if user == ROOT} == {"agent", "device-plugin"}
    assert set(users.values()) == {ROOT, NOBODY}
    for recipe in RECIPES.values():
        assert bool(recipe.why_root) == (recipe.user == ROOT)


def test_containers_start_without_a_shell() -> None:
    for recipe in RECIPES.values():
        assert recipe.entrypoint == (f"/{userland.PYTHON}", "-m", recipe.module)


def test_containerfiles_are_those_of_the_recipes() -> None:
    for recipe in RECIPES.values():
        written = containerfile.path_of(recipe.name).read_text()
        assert written == containerfile.text(recipe), "run `python -m images containerfiles`"
        assert f"\nUSER {recipe.user}\n" in written
    assert len(list(containerfile.FOLDER.glob("*.Containerfile"))) == len(RECIPES)


@pytest.mark.parametrize("name", ["agent", "device-plugin"])
def test_daemon_sets_name_images_by_the_projects_version(name) -> None:
    folder = {"agent": "nodeagent", "device-plugin": "deviceplugin"}[name]
    daemon_set = yaml.safe_load((REPOSITORY / "config" / folder / "daemonset.yaml").read_text())
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"kybernate/{name}:{version()}"


def test_a_digest_depends_on_content_and_place_but_not_on_time(tmp_path) -> None:
    file = tmp_path / "a" / "x.py"
    file.parent.mkdir()
    file.write_text("1")
    first = digest_of("k", files=[file], root=tmp_path)
    file.touch()
    assert digest_of("k", files=[file], root=tmp_path) == first
    moved = file.rename(tmp_path / "x.py")
    assert digest_of("k", files=[moved], root=tmp_path) != first
    assert digest_of("l", files=[moved], root=tmp_path) != digest_of(
        "k", files=[moved], root=tmp_path
    )


def test_the_proxys_image_has_its_page() -> None:
    found = {path.name for path in RECIPES["proxy"].sources() if path.parent.name == "assets"}
    assert {"index.html", "page.css", "main.js"} <= found
