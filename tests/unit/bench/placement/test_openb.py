"""The replay of openb: its arrivals, its figures for the published policies, and the limits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from statistics import fmean
from xml.dom.minidom import parse

import pytest
from click.testing import CliRunner

from bench.placement.colocate import main as colocate
from bench.placement.openb.__main__ import main, parse_seeds
from bench.placement.openb.bound import pooled, relaxed
from bench.placement.openb.draw import main as draw
from bench.placement.openb.replay import Terms, replay
from bench.placement.openb.table import main as table
from bench.placement.openb.trace import arrivals, capacity, read_nodes, read_pods, remixed
from kybernate.core.placement import Ask, Supply

DATA = Path(__file__).parents[4].parent / "shared" / "data" / "openb"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1024,2,T4\nn2,16000,1024,1,G2\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p2,1000,10,1,500,T4|G2|T4\np1,2000,20,0,0,\np3,1000,10,2,1000,\n"
)


@pytest.fixture
def lists(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv.gz"
    nodes.write_text(NODES)
    pods.write_bytes(gzip.compress(PODS.encode()))
    return nodes, pods


def test_lists_are_read_plain_and_zipped(lists: tuple[Path, Path]) -> None:
    nodes, pods = read_nodes(lists[0]), read_pods(lists[1])
    assert nodes[0] == Supply((1000, 1000), "T4", 8000, 1 << 30)
    assert capacity(nodes) == 3000
    assert pods == [
        Ask(0, 0, 2000, 20 << 20),
        Ask(1, 500, 1000, 10 << 20, ("G2", "T4")),
        Ask(2, 1000, 1000, 10 << 20),
    ]


def test_arrivals_are_the_list_and_then_draws_just_within_the_limit() -> None:
    pods = [Ask(1), Ask(1, 300), Ask(0, 0)]
    found = arrivals(pods, 5000, Random(1))
    assert sorted(found[:3]) == sorted(pods)
    assert 4000 < sum(ask.total for ask in found) <= 5000


def test_a_list_above_the_limit_loses_pods() -> None:
    found = arrivals([Ask(1)] * 9, 5500, Random(1))
    assert found == [Ask(1)] * 5


def test_another_mix_is_of_the_same_pods_in_other_parts() -> None:
    pods = [Ask(1, 500)] * 50 + [Ask(1)] * 50
    mix = remixed(pods, 3)
    assert len(mix) == len(pods)
    assert set(mix) <= set(pods)
    assert mix == remixed(pods, 3)
    assert len({remixed(pods, seed).count(Ask(1)) for seed in range(9)}) > 3


def test_the_bound_is_the_scarcest_of_gpu_cpu_and_memory() -> None:
    node = [Supply((1000,) * 4, cpu=2000, memory=1000)]
    assert relaxed(node, [Ask(1, cpu=1000)] * 8) == 50
    assert relaxed(node, [Ask(1, memory=250)] * 2 + [Ask(1, memory=1000)] * 9) == 62.5
    assert relaxed(node, [Ask(1)] * 8) == 100
    assert relaxed(node, [Ask(1)]) == 25


def test_pooled_wastes_what_shares_waste() -> None:
    assert pooled([Supply((1000,)), Supply((1000,))], [Ask(1, 600)] * 5 + [Ask(1, 400)]) == 80


def test_the_command_ends_with_one_line_of_json(lists: tuple[Path, Path], tmp_path: Path) -> None:
    course = tmp_path / "course.json"
    words = ["--nodes", str(lists[0]), "--pods", str(lists[1]), "--seeds", "1-2", "--moves", "5"]
    result = CliRunner().invoke(main, [*words, "--course", str(course), "--json"])
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    assert 0 < line["metrics"]["gpu_allocation_percent"]["value"] <= 100
    assert line["baseline"]["seeds"] == "1-2"
    moments = json.loads(course.read_text())
    assert moments[-1][0] <= 130
    assert all(placed <= arrived for arrived, placed, _ in moments)


def test_seeds_are_a_range_a_list_or_one() -> None:
    assert parse_seeds("42-44") == [42, 43, 44]
    assert parse_seeds("1,5") == [1, 5]
    assert CliRunner().invoke(main, ["--seeds", "x"]).exit_code == 2


PUBLISHED = [
    ("best-fit", "default", 93.08),
    ("fgd", "default", 95.39),
    ("fgd", "multigpu20", 95.65),
    ("fgd", "gpuspec10", 94.95),
]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no openb lists in {DATA}")
@pytest.mark.parametrize(("policy", "workload", "percent"), PUBLISHED)
def test_published_figures_are_reproduced(policy: str, workload: str, percent: float) -> None:
    # One seed; the published standard deviation is up to 0.72.
    nodes = read_nodes(DATA / "openb_node_list_gpu_node.csv.gz")
    pods = read_pods(DATA / f"openb_pod_list_{workload}.csv.gz")
    found = replay(nodes, pods, policy, 42, Terms()).allocation
    assert found == pytest.approx(percent, abs=0.8)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no openb lists in {DATA}")
def test_default_beats_fgd_also_on_a_part_of_the_cluster() -> None:
    nodes = read_nodes(DATA / "openb_node_list_gpu_node.csv.gz")[::12]
    pods = read_pods(DATA / "openb_pod_list_gpuspec10.csv.gz")
    ours, theirs = (
        fmean(replay(nodes, pods, policy, seed, Terms()).allocation for seed in (1, 2, 3))
        for policy in ("default", "fgd")
    )
    assert ours > theirs + 0.3


def test_courses_are_drawn_as_well_formed_svg(tmp_path: Path) -> None:
    file, out = tmp_path / "c.json", tmp_path / "c.svg"
    file.write_text(json.dumps([[85.0, 91.0, 2.0], [100.0, 95.0, 3.0], [130.0, 96.0, 4.0]]))
    assert CliRunner().invoke(draw, [str(out), f"fgd={file}"]).exit_code == 0
    drawing = parse(str(out))  # noqa: S318
    lines = drawing.getElementsByTagName("polyline")
    assert [len(line.getAttribute("points").split()) for line in lines] == [3, 3]
    # A bar for what was placed in the end, three quarters of the way from 90 to 98.
    assert "96.0" in {text.firstChild.data for text in drawing.getElementsByTagName("text")}
    bars = [one.getAttribute("height") for one in drawing.getElementsByTagName("rect")]
    assert f"{0.75 * 260:.1f}" in bars


def test_the_table_says_loudly_that_it_has_no_lists(tmp_path: Path) -> None:
    result = CliRunner().invoke(table, ["--data", str(tmp_path / "none"), "--json"])
    assert result.exit_code == 0
    assert "SKIPPED: there are no openb lists" in result.stderr
    line = json.loads(result.stdout)
    assert line.keys() == {"bench", "skipped"}
    assert "--data names another place" in line["skipped"]


def test_so_does_the_bench_of_sharing_without_its_trace(tmp_path: Path) -> None:
    result = CliRunner().invoke(colocate, ["--trace", str(tmp_path / "none.csv.gz"), "--json"])
    assert result.exit_code == 0
    assert "SKIPPED: there is no trace" in result.stderr
    assert json.loads(result.stdout)["bench"] == "colocate"


def test_the_table_compares_with_the_published_figures(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv.gz").write_bytes(gzip.compress(NODES.encode()))
    for workload in ("default", "gpushare40", "multigpu20", "gpuspec10"):
        (tmp_path / f"openb_pod_list_{workload}.csv.gz").write_bytes(gzip.compress(PODS.encode()))
    result = CliRunner().invoke(table, ["--data", str(tmp_path), "--seeds", "1-2", "--json"])
    line = json.loads(result.stdout.splitlines()[-1])["metrics"]
    assert line["default_gain"]["value"] == pytest.approx(line["default"]["value"] - 95.39)
    assert line["mean_gain"]["unit"] == "points"
