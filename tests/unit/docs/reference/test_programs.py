"""docs/reference/programs.md says of each program what the last whole run has shown of it."""

from __future__ import annotations

from tests.cluster.layout import REPOSITORY
from tests.strangers import commits, seen, table
from tests.strangers.programs import STRANGERS


def test_the_page_is_what_the_last_whole_run_has_shown() -> None:
    assert (REPOSITORY / "docs" / "reference" / "programs.md").read_text() == table.page(
        seen.kept()
    )


def test_every_program_is_in_one_slice_none_of_which_is_much_to_fetch() -> None:
    slices = commits.slices()
    names = [one.name for some in slices for one in some]
    assert sorted(names) == sorted(one.name for one in STRANGERS)
    assert max(map(len, slices)) <= commits.A_RUN
    assert max(sum(one.fetched_mb for one in some) for some in slices) <= commits.FETCHED_MB


def test_each_slice_has_its_commits() -> None:
    found = {tuple(one.name for one in commits.of_commit(f"{n:040x}")) for n in range(100)}
    assert len(found) == len(commits.slices())
