"""The file of workloads: what it says, and errors that name row and column."""

from __future__ import annotations

import pytest

from kybernate.cli.planning.plan import chances
from kybernate.core.simulate import workloads
from kybernate.core.simulate.history import History, workload_of
from kybernate.core.simulate.workloads import GB, HOURS, read_workloads, write_workloads
from kybernate.errors import ConfigError

HEAD = "workload,namespace,gpus,vram_gib,requests_per_hour,p99_s"


def day(some, seed):
    return workloads.day(some, chances(seed))


def read(*rows, head=HEAD):
    return read_workloads([head, *rows], "w.csv", 4.0)


def test_a_row_says_what_a_workload_needs():
    hours = " ".join(str(n) for n in range(HOURS))
    llama, qwen = read(
        f"llama,shop,2,40,{hours},5,9", "qwen,lab,1,16,30,0.5", head=f"{HEAD},seconds"
    )
    assert (llama.key, llama.gpus, llama.gb) == ("shop/llama", 2, 40 * GB)
    assert (llama.by_hour[3], llama.busiest, llama.p99, llama.seconds) == (3, 23, 5, 9)
    assert (set(qwen.by_hour), qwen.seconds) == ({30.0}, 4.0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (",shop,1,40,5,5", "w.csv, line 3: workload: it is empty"),
        ("x,,1,40,5,5", "w.csv, line 3: namespace: it is empty"),
        ("x,shop,1.5,40,5,5", "w.csv, line 3: gpus: 1.5 is no whole number"),
        ("x,shop,0,40,5,5", "w.csv, line 3: gpus: '0' is no number of at least 1"),
        ("x,shop,1,much,5,5", "w.csv, line 3: vram_gib: 'much' is no number"),
        ("x,shop,1,40,-1,5", "w.csv, line 3: requests_per_hour: '-1' is no number"),
        ("x,shop,1,40,nan,5", "w.csv, line 3: requests_per_hour: 'nan' is no number"),
        ("x,shop,1,40,1 2 3,5", "w.csv, line 3: requests_per_hour: it has 3 numbers"),
        ("x,shop,1,40,,5", "w.csv, line 3: requests_per_hour: it has 0 numbers"),
        ("x,shop,1,40,5,inf", "w.csv, line 3: p99_s: 'inf' is no number"),
        ("x,shop,1,40,5", "w.csv, line 3: p99_s: None is no number"),
        ("x,shop,1,40,5,5,5", "w.csv, line 3: it has more cells"),
        ("one,shop,1,40,5,5", "w.csv, line 3: workload: shop/one is there twice"),
    ],
)
def test_an_error_names_row_and_column(row, told):
    with pytest.raises(ConfigError) as found:
        read("one,shop,1,8,1,5", row)
    assert str(found.value).startswith(told)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("workload,gpus", "the column namespace, vram_gib, requests_per_hour, p99_s is missing"),
        (f"{HEAD},second", "line 1: second: it is none"),
        (f"{HEAD},gpus", "line 1: gpus: it is none, or twice"),
    ],
)
def test_an_error_names_the_column_of_the_head(head, told):
    with pytest.raises(ConfigError, match=told):
        read("x,shop,1,40,5,5", head=head)
    with pytest.raises(ConfigError, match="it names no workload"):
        read()


def test_a_day_is_what_the_rates_say_and_the_same_for_the_same_seed():
    some = read("a,x,1,8,200,5", "b,x,1,8," + "0 " * 23 + "300,5")
    found = day(some, 0)
    counts = [found.models.count(n) for n in (0, 1)]
    assert 4500 < counts[0] < 5100
    assert 240 < counts[1] < 360
    assert all(at >= 23 * 3600 for at, m in zip(found.at, found.models, strict=True) if m)
    assert list(found.at) == sorted(found.at)
    assert 3.7 < sum(found.work) / len(found.work) < 4.3
    assert day(some, 0) == found != day(some, 1)
    alone = day(some[1:], 0)
    assert list(alone.at) == [at for at, m in zip(found.at, found.models, strict=True) if m]


def test_an_hour_with_gaps_counts_as_if_it_had_none_and_a_quiet_pod_asks_for_nothing():
    ten = 10 * 3600.0
    busy = {ten + 60.0 * n: 0.5 * (n % 2) for n in range(1, 31)}
    seen = workload_of(History("a", "x", 2, 1024.0, busy), 5.0, "there")
    assert [(h, rate) for h, rate in enumerate(seen.by_hour) if rate] == [(10, 30.0)]
    assert (seen.seconds, seen.gpus, seen.gb) == (30.0, 2, GB)
    quiet = workload_of(History("b", "x", 1, 1024.0, {ten: 0.0}), 5.0, "there")
    assert sum(quiet.by_hour) == 0
    assert read_workloads(write_workloads([seen]).splitlines(), "f", 4.0)[0].by_hour == seen.by_hour
