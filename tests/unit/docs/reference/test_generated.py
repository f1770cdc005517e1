"""docs/reference/settings.md and objects.md are what the code says."""

from __future__ import annotations

import re

import pytest

from tests.cluster.layout import REPOSITORY
from tests.unit.docs.reference import generated, httppage


@pytest.mark.parametrize("file", sorted(generated.PAGES))
def test_the_page_is_what_the_code_says(file: str) -> None:
    said = (generated.REFERENCE / file).read_text()
    assert said == generated.PAGES[file](), "run 'make states'"


def test_every_setting_and_field_is_on_its_page() -> None:
    settings, objects = generated.settings_page(), generated.objects_page()
    for _, _, one in generated.SERVICES:
        assert all(f"- `{name}`, " in settings for name in one.model_fields)
    assert "`status.gpus[].product`, string" in objects
    assert "`spec.artifacts[]`, list of strings" in objects


def test_every_page_of_the_extender_is_listed() -> None:
    wiring = (REPOSITORY / "extender" / "__main__.py").read_text()
    pages = wiring.partition("    pages = {\n")[2].partition("    }\n")[0]
    served = {
        f"/{name}/{{namespace}}/{{pod}}"
        for name in re.findall(r'^ +"(\w+)": ', pages, re.MULTILINE)
    }
    whole = {f"/{name}" for name in re.findall(r'register_whole\(app, "(\w+)"', wiring)}
    assert set(httppage.PAGES) == served | whole
