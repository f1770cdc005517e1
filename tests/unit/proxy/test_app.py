"""The proxy over real sockets: clients in front, a model server and an agent behind."""

from __future__ import annotations

import asyncio
import itertools
import json

import aiohttp
import pytest

from kybernate.gen import agent_pb2
from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import SeatInfo
from proxy.agents import AgentLink


async def newcomer(port):
    async with aiohttp.request("GET", f"http://127.0.0.1:{port}/healthz") as answer:
        return answer.status


def test_a_request_reaches_a_granted_seat_and_its_answer_comes_back_whole(play):
    async def scenario(stage):
        await stage.seat()
        headers = {"X-Request-Id": "mine-1", "Authorization": "Bearer k", "X-Kyb-Seat": "forged"}
        async with stage.client.post(
            "/v1/chat/completions?x=a%26b", data=b'{"model": "m", "n": 1}', headers=headers
        ) as answer:
            assert (answer.status, await answer.json()) == (200, {"counter": 1})
            assert answer.headers["X-Model"] == "yes"
            assert answer.headers["X-Request-Id"] == "mine-1"
            assert answer.headers["X-Kyb-Seat"] == "n1/G0-seat-a"
            assert answer.headers["X-Kyb-Wake-Ms"] == "0.0"
        ((path, sent, body),) = stage.model.requests
        assert (path, body) == ("/v1/chat/completions?x=a%26b", b'{"model": "m", "n": 1}')
        assert sent["X-Request-Id"] == "mine-1"
        assert sent["Authorization"] == "Bearer k"
        assert "X-Kyb-Seat" not in sent

    play(scenario)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_other_endpoints_are_passed_through_also_large_answers(play, path):
    async def scenario(stage):
        await stage.seat()
        async with stage.client.post(path, json={"model": "m"}) as answer:
            assert answer.status == 200
            assert len(await answer.read()) == 200_000

    play(scenario)


def test_a_request_waits_for_its_seat_and_the_agent_hears_of_it(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        asked = stage.asked()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        stage.agent.lease("grant")
        status, _, headers = await asked
        assert status == 200
        assert float(headers["X-Kyb-Wake-Ms"]) > 0
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        assert stage.agent.reports[-1].demand.requests == 1

    play(scenario)


def test_events_are_streamed_as_they_come(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        async with stage.chat(stream=True) as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readline() == b"data: one\n"
            stage.model.gate.set()
            assert await answer.content.read() == b"\ndata: [DONE]\n\n"

    play(scenario)


def test_a_client_that_leaves_while_waiting_lowers_the_demand(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        asked = stage.asked()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        asked.cancel()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        stage.agent.lease("grant")
        await stage.seats(lambda seats: seats[0]["granted"])
        assert stage.model.requests == []

    play(scenario)


def test_a_client_that_leaves_in_mid_answer_is_told_to_the_model(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        async with stage.chat(stream=True) as answer:
            await answer.content.readline()
            answer.close()
        async with asyncio.timeout(5):
            await stage.model.left.wait()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))

    play(scenario)


def test_a_drain_finishes_what_is_in_flight_and_closes_idle_connections(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        first = stage.asked()
        async with asyncio.timeout(5):
            await stage.model.arrived.wait()
        stage.agent.lease("drain")
        await stage.seats(lambda seats: not seats[0]["granted"])
        second = stage.asked()
        await stage.agent.until(lambda: stage.agent.demand() == (1, 1))
        assert stage.agent.drained() == []
        stage.model.gate.set()
        assert (await first)[0] == 200
        await stage.agent.until(lambda: stage.agent.drained() == [("a", 1)])
        await stage.model.until_no_connection()
        assert not second.done()
        stage.agent.lease("grant", generation=2)
        assert (await second)[0] == 200

    play(scenario)


def test_a_revoke_ends_an_answer_that_has_not_begun_with_503(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        asked = stage.asked()
        async with asyncio.timeout(5):
            await stage.model.arrived.wait()
        stage.agent.lease("revoke")
        status, body, headers = await asked
        assert (status, body["error"]["code"]) == (503, "seat_revoked")
        assert headers["Retry-After"] == "5"
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))

    play(scenario)


def test_a_revoke_ends_a_stream_with_an_error_event_and_no_proper_end(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        async with stage.chat(stream=True) as answer:
            await answer.content.readline()
            stage.agent.lease("revoke")
            await answer.content.readline()
            assert b"seat_revoked" in await answer.content.readline()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.read()

    play(scenario)


def test_a_broken_stream_of_the_agent_stops_new_requests_and_then_old_ones(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        flying = stage.asked()
        async with asyncio.timeout(5):
            await stage.model.arrived.wait()
        await stage.agent.stop()
        await stage.seats(lambda seats: not seats[0]["connected"])
        waiting = stage.asked()
        status, body, _ = await flying
        assert (status, body["error"]["code"]) == (503, "seat_revoked")
        assert not waiting.done()
        await stage.agent.start()
        await stage.agent.until(lambda: stage.agent.hellos == 2)
        stage.model.gate.set()
        await stage.seat(state="active")
        assert (await waiting)[0] == 200

    play(scenario, lease_break_s=0.2)


def test_no_stream_is_tried_before_somebody_listens_and_one_is_then(play, monkeypatch):
    made, make = [], AgentLink._channel

    def counted(link):
        made.append(link.node)
        return make(link)

    monkeypatch.setattr(AgentLink, "_channel", counted)

    async def scenario(stage):
        await stage.seat()
        await stage.agent.stop()
        await stage.seats(lambda seats: not seats[0]["connected"])
        await asyncio.sleep(0.5)
        assert made == ["n1"]
        await stage.agent.start()
        await stage.agent.until(lambda: stage.agent.hellos == 2)
        assert made == ["n1", "n1"]

    play(scenario)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_agent_at_no_address_keeps_nobody_from_others(play, address):
    async def scenario(stage):
        await stage.seat(state="active")
        node = {"metadata": {"name": "n2"}, "status": {"agent": {"address": address}}}
        stage.service._agents.on_node("ADDED", node)
        await asyncio.sleep(0.1)
        assert (await stage.asked())[0] == 200
        assert not stage.service._agents._links["n2"]._task.done()

    play(scenario)


def test_a_stream_that_returns_in_time_spares_what_is_in_flight(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        flying = stage.asked()
        async with asyncio.timeout(5):
            await stage.model.arrived.wait()
        stage.agent.hang_up()
        await stage.agent.until(lambda: stage.agent.hellos == 2)
        await stage.agent.until(lambda: stage.agent.demand() == (1, 0))
        await stage.seat(state="active")
        stage.model.gate.set()
        assert (await flying)[0] == 200

    play(scenario)


def test_agents_are_found_and_forgotten_as_gpu_nodes_come_and_go(play):
    async def scenario(stage):
        await stage.seat()
        agents, name = stage.service._agents, {"name": "n1"}
        agents.on_node("DELETED", {"metadata": name})
        await stage.seats(lambda seats: seats == [])
        agents.on_node("ADDED", {"metadata": name})
        agent = {"address": f"127.0.0.1:{stage.agent.port}"}
        agents.on_node("MODIFIED", {"metadata": name, "status": {"agent": agent}})
        await stage.agent.until(lambda: stage.agent.hellos == 2)
        await stage.seat()
        assert (await stage.asked())[0] == 200

    play(scenario)


def test_an_agent_that_moves_is_followed(play):
    async def scenario(stage):
        await stage.seat()
        await stage.agent.stop()
        stage.agent.port = 0
        await stage.agent.start()
        agent = {"address": f"127.0.0.1:{stage.agent.port}"}
        node = {"metadata": {"name": "n1"}, "status": {"agent": agent}}
        stage.service._agents.on_node("MODIFIED", node)
        await stage.agent.until(lambda: stage.agent.hellos == 2)
        await stage.seat(state="active")
        assert (await stage.asked())[0] == 200

    play(scenario)


def test_a_revoke_closes_idle_connections_too(play):
    async def scenario(stage):
        await stage.seat()
        assert (await stage.asked())[0] == 200
        stage.agent.lease("revoke")
        await stage.model.until_no_connection()

    play(scenario, idle_connection_s=60)


def test_what_waits_too_long_or_too_many_is_answered_429(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        first = stage.asked()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        status, body, headers = await stage.asked()
        assert (status, body["error"]["code"]) == (429, "too_many_waiting")
        assert body["error"]["type"] == "rate_limit_error"
        assert headers["Retry-After"] == "5"
        status, body, _ = await first
        assert (status, body["error"]["code"]) == (429, "wait_limit")
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))

    play(scenario, max_waiting_per_model=1, wait_limit_s=0.5)


def test_a_client_says_how_long_it_waits_and_is_told_when_to_ask_again(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        first = stage.asked(headers={"X-Kyb-Wait-Ms": "300"})
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        status, body, _ = await first
        assert (status, body["error"]["code"]) == (429, "wait_limit")
        assert "within 0.3 s" in body["error"]["message"]
        stage.agent.name_seat(stage.model.address, wake_seconds=7.2, wake_measured=True)
        await stage.seats(lambda seats: seats[0]["expected_wake_ms"] == 7200)
        status, body, headers = await stage.asked(headers={"X-Kyb-Wait-Ms": "300"})
        assert (status, body["error"]["code"]) == (503, "not_in_time")
        assert headers["Retry-After"] == "8"
        assert stage.agent.demand() == (0, 0)

    play(scenario)


def test_of_what_is_scaled_to_zero_clients_are_told_by_one_estimate(play):
    async def scenario(stage):
        nowhere = (PodUid(""), NodeName(""), "", "", "pod-a")
        info = SeatInfo(*nowhere, "m", SeatState.GONE, namespace="default", wake=1.2)
        stage.service._desk.asleep([info])
        status, body, headers = await stage.asked(headers={"X-Kyb-Wait-Ms": "100"})
        assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "wait_limit", "2")
        async with stage.chat(stream=True, headers={"X-Kyb-Progress": "1"}) as answer:
            told = json.loads((await answer.content.readline()).removeprefix(b": kyb "))
            assert abs(told["waited_ms"] + told["expected_ms"] - 1200) <= 1
            assert told["seat"] == "scaled to zero"
        status, body, headers = await stage.asked(headers={"X-Kyb-Wait-Ms": "1300"})
        assert (status, headers["Retry-After"]) == (429, "5"), "it should be there by now"

    play(scenario)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Kyb-Wait-Ms", "soon"), ("X-Kyb-Wait-Ms", "-1"), ("X-Kyb-Priority", "101")],
)
def test_a_header_of_ours_that_makes_no_sense_is_named(play, name, value):
    async def scenario(stage):
        await stage.seat()
        status, body, _ = await stage.asked(headers={name: value})
        assert (status, body["error"]["code"]) == (400, "invalid_header")
        assert name in body["error"]["message"]

    play(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_wants_to_know_is_told_how_it_stands_while_it_waits(play, stream):
    async def scenario(stage):
        await stage.seat(granted=False)
        stage.agent.name_seat(stage.model.address, wake_seconds=60.0)
        await stage.seats(lambda seats: seats[0]["expected_wake_ms"] == 60_000)
        headers = {"X-Kyb-Progress": "1", "X-Request-Id": "mine"}
        async with stage.chat(stream=stream, headers=headers) as answer:
            line = await answer.content.readline()
            told = json.loads(line.removeprefix(b": kyb "))
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            assert answer.headers["X-Request-Id"] == "mine"
            assert told["waited_ms"] >= 400
            assert abs(told["waited_ms"] + told["expected_ms"] - 60_000) <= 1
            assert told["seat"] == "parked"
            stage.agent.lease("grant")
            rest = await answer.content.read()
            assert rest.endswith(b"data: [DONE]\n\n" if stream else b'data: {"counter": 1}\n\n')
        assert "X-Kyb-Progress" not in stage.model.requests[0][1]

    play(scenario)


def test_a_long_answer_that_is_no_stream_comes_whole_as_one_event(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        asked = stage.client.post(
            "/v1/embeddings", json={"model": "m"}, headers={"X-Kyb-Progress": "1"}
        )
        async with asked as answer:
            assert (await answer.content.readline()).startswith(b": kyb ")
            stage.agent.lease("grant")
            text = await answer.content.read()
        data = [line for line in text.split(b"\n") if line.startswith(b"data: ")]
        assert data == [b"data: " + b"x" * 200_000]

    play(scenario)


def test_an_answer_after_words_on_the_waiting_is_not_compressed(play):
    """The headers are sent, and name no encoding."""

    async def scenario(stage):
        await stage.seat(granted=False)
        headers = {"X-Kyb-Progress": "1", "Accept-Encoding": "gzip"}
        async with stage.chat(headers=headers) as answer:
            assert (await answer.content.readline()).startswith(b": kyb ")
            stage.agent.lease("grant")
            await answer.read()
        async with stage.chat(headers=headers) as answer:
            await answer.read()
        encodings = [headers["Accept-Encoding"] for _, headers, _ in stage.model.requests]
        assert encodings == ["identity", "gzip"]

    play(scenario)


def test_a_client_that_was_told_how_it_stands_hears_of_its_refusal_as_an_event(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        async with stage.chat(headers={"X-Kyb-Progress": "1"}) as answer:
            lines = [await answer.content.readline() for _ in range(3)]
        assert lines[0].startswith(b": kyb ")
        assert b'"code":"wait_limit"' in lines[2]

    play(scenario, wait_limit_s=0.7)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        ("park", "kubectl kyb park POD"),
        ("unload", "kubectl delete pod POD"),
        ("pin", "kubectl kyb pin POD"),
    ],
)
def test_what_a_box_does_to_a_model_a_proxy_does_not(play, act, says):
    async def scenario(stage):
        await stage.seat()
        async with stage.client.post(f"/api/models/{act}/m", json={"model": "m"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (403, "only_shown")
            assert says in error["message"]
        assert stage.model.requests == []

    play(scenario)


def test_a_path_that_is_not_allowed_is_refused_with_those_that_are(play):
    async def scenario(stage):
        await stage.seat()
        async with stage.client.post("/v1/rerank", json={"model": "m"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (404, "unknown_url")
            assert "/v1/embeddings (the proxy's setting paths)" in error["message"]
        async with stage.client.post("/v1/embeddings", json={"model": "m"}) as answer:
            assert answer.status == 200

    play(scenario, paths=("/v1/embeddings",))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b'{"model": "x"}', 404, "model_not_found", id="unknown model"),
        pytest.param(b"{", 400, "invalid_json", id="not JSON"),
        pytest.param(b"[]", 400, "model_missing", id="not an object"),
        pytest.param(b'{"model": 1}', 400, "model_missing", id="model is no string"),
        pytest.param(b'"' + b"x" * 2000 + b'"', 413, "body_too_large", id="too large"),
    ],
)
def test_a_request_that_can_not_be_right_is_refused_in_openais_shape(play, body, status, code):
    async def scenario(stage):
        await stage.seat()
        async with stage.client.post("/v1/chat/completions", data=body) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (status, code)
            assert error["message"].endswith(".")
            assert answer.headers["X-Request-Id"].startswith("req-")
        assert stage.model.requests == []

    play(scenario, max_body_bytes=1024)


def test_a_body_that_turns_out_too_large_is_not_taken_for_one_too_many(play):
    async def scenario(stage):
        await stage.seat()

        async def chunks():
            for _ in range(2):
                yield b"x" * 600

        async with stage.client.post("/v1/chat/completions", data=chunks()) as answer:
            assert answer.status == 413

    play(scenario, max_body_bytes=1024, max_held_bytes_per_client=1024)


def test_a_server_that_listens_late_after_its_wake_is_tried_again(play):
    async def scenario(stage):
        await stage.model.stop()
        await stage.seat()
        asked = stage.asked()
        await stage.seats(lambda seats: seats[0]["in_flight"] == 1)
        await stage.model.start()
        assert (await asked)[0] == 200

    play(scenario)


def test_a_seat_that_does_not_answer_is_a_502_with_a_sentence(play):
    async def scenario(stage):
        await stage.model.stop()
        await stage.seat()
        status, body, _ = await stage.asked()
        assert (status, body["error"]["code"]) == (502, "upstream_failed")
        assert "default/pod-a" in body["error"]["message"]

    play(scenario, connect_limit_s=0.1)


def test_models_are_listed_whatever_their_state(play):
    async def scenario(stage):
        await stage.seat(granted=False, state="parked", model="org/m")
        async with stage.client.get("/v1/models") as answer:
            (model,) = (await answer.json())["data"]
        assert (model["id"], model["object"]) == ("default/org/m", "model")
        assert model["kyb"]["seats"][0]["state"] == "parked"
        async with stage.client.get("/v1/models/default/org/m") as answer:
            assert (await answer.json())["id"] == "default/org/m"
        async with stage.client.get("/v1/models/none") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (
                404,
                "model_not_found",
            )

    play(scenario)


def test_models_tell_the_tier_the_bytes_and_how_soon_they_may_wake(play):
    async def scenario(stage):
        parked = {"state": "parked", "held_bytes": 7, "saved_bytes": 9, "wake_seconds": 1.25}
        for uid, tier in (("a", "ram"), ("b", "nvme"), ("c", "object")):
            seat = agent_pb2.Seat(uid=uid, name=uid, namespace="x", model="m", tier=tier, **parked)
            stage.agent.order(seat=seat)
        stage.agent.order(seat=agent_pb2.Seat(uid="d", name="d", model="m", state="active"))
        seats = {seat["seat"]: seat for seat in await stage.seats(lambda seats: len(seats) == 4)}
        told = {
            name: (seat["state"], seat["tier"], seat["bytes"], seat["expected_wake_ms"])
            for name, seat in seats.items()
        }
        assert told == {
            "a": ("parked", "ram", 7, 1250.0),
            "b": ("parked", "nvme", 9, 1250.0),
            "c": ("parked", "object", 9, 1250.0),
            "d": ("active", None, 0, 0.0),
        }
        waits = stage.asked(model="x/m")
        await stage.agent.until(lambda: stage.agent.demand("a") == (0, 1))
        assert (stage.agent.demand("b"), stage.agent.demand("c")) == (None, None)
        waits.cancel()

    play(scenario)


def test_a_full_name_leads_to_its_namespace_and_the_seat_sees_its_own(play):
    async def scenario(stage):
        await stage.seat()
        status, *_ = await stage.asked(model="default/m")
        assert status == 200
        assert json.loads(stage.model.requests[-1][2])["model"] == "m"
        async with stage.client.get("/v1/models/default/m") as answer:
            assert (await answer.json())["id"] == "m"

    play(scenario)


def test_an_alias_and_an_adapter_lead_to_their_model_and_to_no_namesake(play):
    async def scenario(stage):
        await stage.seat()
        namesake = {"uid": "b", "name": "b", "namespace": "x", "model": "best", "state": "active"}
        stage.agent.order(seat=agent_pb2.Seat(**namesake))
        await stage.seats(lambda seats: len({one["seat"] for one in seats}) == 2)
        for name, seen in (("best", "m"), ("sql", "sql")):
            status, *_ = await stage.asked(model=name)
            assert status == 200
            assert json.loads(stage.model.requests[-1][2])["model"] == seen
            async with stage.client.get(f"/v1/models/{name}") as answer:
                found = await answer.json()
            assert (found["id"], found["kyb"]["name"]) == (name, "default/m")
        async with stage.client.get("/v1/models") as answer:
            listed = [one["id"] for one in (await answer.json())["data"]]
        assert listed == ["m", "x/best", "best", "sql"]
        status, said, _ = await stage.asked(model="none")
        assert (status, said["error"]["code"]) == (404, "model_not_found")
        assert "'none'" in said["error"]["message"]

    names = {"aliases": {"best": "default/m", "none": "x/away"}, "adapters": {"sql": "default/m"}}
    play(scenario, **names)


def test_a_new_proxy_is_ready_once_its_agents_had_time_to_name_their_seats(play, monkeypatch):
    monkeypatch.setattr("proxy.agents._QUIET", 1.0)

    async def ready(stage):
        async with stage.client.get("/readyz") as answer:
            return answer.status, await answer.text()

    async def scenario(stage):
        await stage.seat()
        assert await ready(stage) == (503, "1 of the 1 agents are naming their seats\n")
        await asyncio.sleep(1.1)
        assert (await ready(stage))[0] == 200
        # An agent that restarts keeps nobody from the others' seats.
        await stage.agent.stop()
        await stage.seats(lambda seats: not seats[0]["connected"])
        await stage.agent.start()
        await stage.seats(lambda seats: seats[0]["connected"])
        assert (await ready(stage))[0] == 200

    play(scenario)


def test_a_proxy_is_ready_though_its_agents_seats_change_all_the_time(play, monkeypatch):
    monkeypatch.setattr("proxy.agents._QUIET", 0.5)

    async def scenario(stage):
        await stage.seat()
        states = itertools.cycle(("waking", "active", "draining", "parked"))
        answers = []
        for _ in range(15):
            stage.agent.name_seat(stage.model.address, state=next(states))
            await asyncio.sleep(0.1)
            async with stage.client.get("/readyz") as answer:
                answers.append(answer.status)
        assert answers[0] == 503
        assert answers[-1] == 200

    play(scenario)


def test_probes_and_metrics_answer(play, monkeypatch):
    monkeypatch.setattr("proxy.agents._QUIET", 0.0)

    async def scenario(stage):
        await stage.seat()
        assert (await stage.asked())[0] == 200
        for path in ("/healthz", "/readyz"):
            async with stage.client.get(path) as answer:
                assert answer.status == 200
        async with stage.client.get("/metrics") as answer:
            text = await answer.text()
        assert 'kyb_proxy_requests_total{model="default/m",status="200"} 1.0' in text
        assert 'kyb_proxy_seat_granted{model="default/m",node="n1",seat="G0-seat-a"} 1.0' in text
        await stage.agent.stop()
        await stage.seats(lambda seats: not seats[0]["connected"])
        async with stage.client.get("/readyz") as answer:
            assert answer.status == 503
            assert "none of the 1 agents" in await answer.text()
        await stage.agent.start()

    play(scenario)


def test_a_stop_lets_requests_finish_and_accepts_no_new_ones(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        flying = stage.asked()
        async with asyncio.timeout(5):
            await stage.model.arrived.wait()
        stopping = asyncio.create_task(stage.service.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(aiohttp.ClientConnectorError):
            await newcomer(stage.service.port)
        stage.model.gate.set()
        assert (await flying)[0] == 200
        await stopping

    play(scenario)


def test_a_stop_ends_endless_answers_and_who_waits_by_its_deadline(play):
    async def scenario(stage):
        await stage.seat()
        stage.model.gate.clear()
        async with stage.chat(stream=True) as answer:
            assert await answer.content.readline() == b"data: one\n"
            stage.agent.name_seat(stage.model.address, uid="b", model="n")
            await stage.seats(lambda seats: len(seats) == 2)
            held = stage.asked(model="n")
            await stage.agent.until(lambda: stage.agent.demand("b") == (0, 1))
            stopping = asyncio.create_task(stage.service.stop())
            assert await answer.content.readline() == b"\n"
            assert b"The proxy is being stopped" in await answer.content.readline()
            async with asyncio.timeout(2.0):
                await stopping
            status, body, headers = await held
            assert (status, body["error"]["code"]) == (503, "proxy_ends")
            assert headers["Retry-After"] == "1"

    play(scenario, shutdown_limit_s=1.2)


def test_a_proxy_that_stops_gives_its_leases_back_before_its_streams_end(play):
    """Else a swap would wait until the agent no longer believes in requests in flight there."""

    async def scenario(stage):
        await stage.seat()
        assert (await stage.asked())[0] == 200
        await stage.service.stop()
        assert stage.agent.drained() == [("a", 1)]

    play(scenario)
