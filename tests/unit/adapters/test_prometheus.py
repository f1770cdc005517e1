"""Whom `kybernate plan --prometheus` asks: within a deadline, and without telling a password."""

from __future__ import annotations

from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters import prometheus
from kybernate.adapters.prometheus import Prometheus
from kybernate.errors import ConfigError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_a_password_in_its_url_is_refused_and_not_told(scheme: str) -> None:
    with pytest.raises(ConfigError) as found:
        Prometheus(f"{scheme}://ann:s3cret@metrics.test:9090/x")
    assert "s3cret" not in str(found.value)
    assert "ann" not in str(found.value)
    assert f"{scheme}://metrics.test:9090/x" in str(found.value)


@pytest.mark.parametrize("place", ["[metrics", "metrics:http", "metrics:99999"])
def test_what_is_no_url_is_refused_and_not_told(place: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT") as found:
        Prometheus(f"http://ann:s3cret@{place}")
    assert "s3cret" not in str(found.value)


class Slow(BytesIO):
    """Has an endless answer, of which a byte comes now and then."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def read1(self, _size: int | None = -1, /) -> bytes:
        self._clock[0] += 10.0
        assert self._clock[0] < 1000.0, "it reads for ever"
        return b" "

    def read(self, _size: int | None = -1, /) -> bytes:
        return self.read1()


def test_an_answer_that_never_ends_has_the_deadline_of_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    @contextmanager
    def opened(_asked: str, **_: float) -> Iterator[Slow]:
        yield Slow(clock)

    monkeypatch.setattr(prometheus, "urlopen", opened)
    monkeypatch.setattr(prometheus.time, "monotonic", lambda: clock[0])
    with pytest.raises(RetryableError, match="did not end within 30 s"):
        Prometheus("http://metrics.test:9090").day(0.0)
    assert clock[0] == 40.0
