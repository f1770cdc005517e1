from __future__ import annotations

import hashlib
import json
import tarfile

import pytest

from images.oci import ImageConfig, Layer, blob, write_archive


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("x")
    (root / "bin" / "tool").chmod(0o755)
    (root / "bin" / "alias").symlink_to("tool")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").touch()
    return root


def _layer(path, tree):
    with tarfile.open(path, "w") as tar:
        layer = Layer(tar)
        layer.tree(tree, "usr")
        layer.folder("tmp", 0o1777)
        layer.file("etc/name", b"n")
    return blob(path)


def test_a_layer_is_the_same_for_the_same_content(tmp_path, tree) -> None:
    first = _layer(tmp_path / "a.tar", tree)
    (tree / "bin" / "tool").touch()
    assert _layer(tmp_path / "b.tar", tree).digest == first.digest


def test_a_layer_holds_parents_links_and_modes_but_no_byte_code(tmp_path, tree) -> None:
    _layer(tmp_path / "a.tar", tree)
    with tarfile.open(tmp_path / "a.tar") as tar:
        found = {one.name: one for one in tar.getmembers()}
    assert list(found) == [
        "usr",
        "usr/bin",
        "usr/bin/alias",
        "usr/bin/tool",
        "tmp",
        "etc",
        "etc/name",
    ]
    assert found["usr/bin/tool"].mode == 0o755
    assert found["usr/bin/alias"].linkname == "tool"
    assert found["tmp"].mode == 0o1777
    assert {one.uid for one in found.values()} == {0}


def test_an_archive_leads_from_its_index_to_config_and_layers(tmp_path, tree) -> None:
    layer = _layer(tmp_path / "a.tar", tree)
    config = ImageConfig(entrypoint=("/usr/bin/tool",), command=("go",))
    noted = {"org.example.made-of": "a test"}
    write_archive(tmp_path / "i.tar", "localhost/thing:1", [layer], config, noted)
    with tarfile.open(tmp_path / "i.tar") as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        def follow(one: dict[str, str]) -> bytes:
            data = read("blobs/" + one["digest"].replace(":", "/"))
            assert hashlib.sha256(data).hexdigest() == one["digest"].removeprefix("sha256:")
            return data

        (entry,) = json.loads(read("index.json"))["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "localhost/thing:1"
        manifest = json.loads(follow(entry))
        assert manifest["annotations"] == noted
        image = json.loads(follow(manifest["config"]))
        assert image["config"]["Entrypoint"] == ["/usr/bin/tool"]
        assert image["config"]["Cmd"] == ["go"]
        assert image["rootfs"]["diff_ids"] == [layer.digest]
        assert follow(manifest["layers"][0]) == (tmp_path / "a.tar").read_bytes()
