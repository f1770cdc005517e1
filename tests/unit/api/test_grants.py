"""A grant is what was written into its object, or it is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from kybernate.api.restoring.grants import ArtifactGrant, Spec, read_grant
from kybernate.core.artifacts.grants import ALL

NAMES = st.lists(st.text("abc-", min_size=1, max_size=9), min_size=1, max_size=3).map(tuple)
TIMES = st.datetimes(timezones=st.just(UTC), min_value=datetime(1971, 1, 1)).map(  # noqa: DTZ001
    lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ")
)
GRANTS = st.builds(
    ArtifactGrant, st.builds(Spec, NAMES, NAMES | st.just((ALL,)), TIMES | st.just("never"))
)
MODEL = TypeAdapter(ArtifactGrant)


@given(GRANTS)
def test_what_is_dumped_is_read_as_it_was(grant: ArtifactGrant) -> None:
    told = orjson.loads(orjson.dumps(MODEL.dump_python(grant, mode="json", by_alias=True)))
    assert MODEL.validate_python(told) == grant
    found = read_grant({"metadata": {"namespace": "ns", "name": "g"}, **told})
    assert (found.to, found.artifacts) == (grant.spec.to, grant.spec.artifacts)
    assert (found.until == float("inf")) == (grant.spec.until == "never")
