"""docs/reference/settings.md and objects.md are what the code says."""

from __future__ import annotations

import pytest

from tests.unit.docs.reference import generated


@pytest.mark.parametrize("file", sorted(generated.pages()))
def test_the_page_is_what_the_code_says(file: str) -> None:
    said = (generated.REFERENCE / file).read_text()
    assert said == generated.pages()[file], "run 'make states'"


def test_every_setting_and_field_is_on_its_page() -> None:
    settings, objects = generated.settings_page(), generated.objects_page()
    for _, _, one in generated.SERVICES:
        assert all(f"- `{name}`, " in settings for name in one.model_fields)
    assert "`status.gpus[].product`, string" in objects
    assert "`spec.artifacts[]`, list of strings" in objects
