"""A connection of HTTP/2 as bytes: what is asked, what is answered, what is turned away."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.runtime.http2 import Broken, Conversation
from kybernate.runtime.http2.conversation import MOST_STREAMS
from tests.kit.clients.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PING,
    PUSH,
    RESET,
    SETTINGS,
    UPDATE,
    Frame,
    answers,
    call,
    frame,
    frames,
    head,
    settings,
)

MOST = 100_000
HEAD = head(
    [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/x"), (b":authority", b"x")]
)


@pytest.fixture
def talk() -> Conversation:
    """A connection on which both have greeted."""
    made = Conversation(MOST)
    assert made.receive(GREETING) == []
    said(made)
    return made


def said(talk: Conversation) -> list[Frame]:
    found = frames(bytes(talk.out))
    talk.out.clear()
    return found


def numbers(load: bytes) -> tuple[int, ...]:
    return tuple(number for (number,) in struct.iter_unpack(">I", load[: len(load) // 4 * 4]))


def test_both_greet() -> None:
    talk = Conversation(MOST)
    for byte in GREETING:
        assert talk.receive(bytes([byte])) == []
    ours, window, theirs = said(talk)
    assert (ours.kind, window.kind, theirs) == (SETTINGS, UPDATE, Frame(SETTINGS, ACK, 0, b""))
    offered = dict(struct.iter_unpack(">HI", ours.load))
    assert offered[3] == MOST_STREAMS
    assert offered[4] > MOST


def test_a_request_is_given_out_once_it_is_whole(talk: Conversation) -> None:
    sent = call(1, "/v1/filter?a=b", b"0123456789", (b"content-type", b"text"), part=4)
    found = [one for byte in sent for one in talk.receive(bytes([byte]))]
    (asked,) = found
    assert asked[:3] == (1, "POST", "/v1/filter?a=b")
    assert (asked.body, asked.length) == (b"0123456789", 10)
    assert asked.headers[b"content-type"] == b"text"
    talk.respond(1, 200, [(b"content-length", b"2")], b"ok")
    (answer,) = answers(said(talk)).values()
    assert (answer.status, answer.headers[b"content-length"], answer.body) == (200, b"2", b"ok")
    assert talk.open == 0


def test_requests_overlap_and_are_answered_in_any_order(talk: Conversation) -> None:
    found = talk.receive(call(1, "/a", b"1") + call(3, "/b") + call(5, "/c", b"3"))
    assert [(one.stream, one.path, one.body) for one in found] == [
        (1, "/a", b"1"),
        (3, "/b", b""),
        (5, "/c", b"3"),
    ]
    for stream in (5, 1, 3):
        talk.respond(stream, 204, [], b"")
    assert list(answers(said(talk))) == [5, 1, 3]


def test_what_follows_a_body_ends_it(talk: Conversation) -> None:
    trailer = frame(HEADERS, END_HEADERS | END_STREAM, 1, head([(b"sum", b"1")]))
    sent = frame(HEADERS, END_HEADERS, 1, HEAD) + frame(DATA, 0, 1, b"body") + trailer
    (asked,) = talk.receive(sent)
    assert asked.body == b"body"


def test_a_large_answer_waits_for_the_peers_windows(talk: Conversation) -> None:
    body = bytes(range(256)) * 600
    talk.receive(settings(n4=50_000))
    talk.receive(call(1, "/a"))
    said(talk)
    talk.respond(1, 200, [], body)
    got = said(talk)
    assert sum(len(one.load) for one in got if one.kind == DATA) == 50_000
    assert max(len(one.load) for one in got) <= 16_384
    assert talk.receive(frame(UPDATE, 0, 1, struct.pack(">I", 200_000))) == []
    got += said(talk)
    assert sum(len(one.load) for one in got if one.kind == DATA) == 65_535
    talk.receive(frame(UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    got += said(talk)
    assert answers(got)[1].body == body
    assert talk.open == 0


def test_a_body_that_is_too_large_is_told_of_without_it(talk: Conversation) -> None:
    (asked,) = talk.receive(
        frame(HEADERS, END_HEADERS, 1, HEAD + head([(b"content-length", b"100001")]))
    )
    assert (asked.body, asked.length) == (b"", 100_001)
    found = talk.receive(call(3, "/a", b"x" * (MOST + 1)))
    assert [(one.stream, one.body, one.length) for one in found] == [(3, b"", MOST + 1)]
    for stream in (1, 3):
        talk.respond(stream, 413, [], b"")
    got = said(talk)
    assert answers(got)[1].status == answers(got)[3].status == 413
    assert Frame(RESET, 0, 1, b"\0\0\0\0") in got
    # What is still on its way of it is let pass.
    assert talk.receive(frame(DATA, END_STREAM, 1, b"rest")) == []
    assert talk.open == 0


def test_bodies_that_never_end_are_not_kept_for_ever(talk: Conversation) -> None:
    for stream in (1, 3, 5):
        talk.receive(frame(HEADERS, END_HEADERS, stream, HEAD))
        for _ in range(6):
            talk.receive(frame(DATA, 0, stream, b"x" * 16_000))
    assert {(one.kind, one.stream) for one in said(talk)} == {(RESET, 5)}
    assert talk.open == 2


def test_nobody_gets_more_done_at_a_time_by_giving_up(talk: Conversation) -> None:
    asked = 0
    for number in range(3 * MOST_STREAMS):
        stream = 2 * number + 1
        asked += len(talk.receive(call(stream, "/a") + frame(RESET, 0, stream, b"\0\0\0\x08")))
    assert asked == talk.open == MOST_STREAMS
    talk.respond(1, 200, [], b"late")
    assert said(talk) == []
    assert talk.open == MOST_STREAMS - 1


def test_after_leaving_only_what_is_open_goes_on(talk: Conversation) -> None:
    talk.receive(call(1, "/a"))
    talk.leave()
    assert talk.receive(call(3, "/b")) == []
    assert talk.left
    away, refused = said(talk)
    assert (refused.kind, refused.stream) == (RESET, 3)
    assert (away.kind, numbers(away.load)) == (GOAWAY, (1, 0))
    talk.respond(1, 200, [], b"")
    assert 1 in answers(said(talk))
    assert talk.open == 0


def test_pings_are_answered_and_what_is_unknown_is_not(talk: Conversation) -> None:
    sent = frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"12345678")
    talk.receive(sent + frame(99, 7, 5, b"?") + frame(2, 0, 9, b"12345"))
    assert said(talk) == [Frame(PING, ACK, 0, b"12345678")]


@pytest.mark.parametrize(
    "sent",
    [
        frame(PING, 0, 0, b"1"),
        settings(n4=1 << 31),
        frame(PUSH, 0, 1, b""),
        frame(HEADERS, END_HEADERS, 2, HEAD),
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff"),
        frame(HEADERS, 0, 1, HEAD) + frame(PING, 0, 0, b"12345678"),
        frame(HEADERS, END_HEADERS, 1, HEAD) * 2,
        frame(HEADERS, END_HEADERS, 1, head([(b":path", b"/")])),
        call(1, "/a", b"123", (b"content-length", b"4")),
    ],
)
def test_who_errs_is_told_and_left(talk: Conversation, sent: bytes) -> None:
    with pytest.raises(Broken):
        talk.receive(sent)
    assert said(talk)[-1].kind == GOAWAY
    assert talk.left


def test_what_is_no_http2_is_left_at_once() -> None:
    talk = Conversation(MOST)
    with pytest.raises(Broken, match="preamble"):
        talk.receive(b"GET / HTTP/1.1\r\n\r\n")


def test_the_peer_may_send_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kybernate.runtime.http2.conversation._WINDOW", 100_000)
    talk = Conversation(MOST)
    talk.receive(GREETING)
    for number in range(10):
        (asked,) = talk.receive(call(2 * number + 1, "/a", b"x" * 30_000))
        talk.respond(asked.stream, 200, [], b"")
    assert sum(numbers(one.load)[0] for one in said(talk) if one.kind == UPDATE) >= 200_000


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_followed_or_end_it(noise: bytes, greeted: bool) -> None:
    talk = Conversation(MOST)
    try:
        talk.receive((GREETING + call(1, "/a", b"x") if greeted else b"") + noise)
    except Broken:
        assert talk.left
        assert not greeted or said(talk)[-1].kind == GOAWAY


KINDS = st.integers(0, 10)


@given(st.lists(st.tuples(KINDS, st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40))))
def test_any_frames_are_followed_or_end_it(sent: list[tuple[int, int, int, bytes]]) -> None:
    talk = Conversation(MOST)
    talk.receive(GREETING)
    try:
        for one in sent:
            for asked in talk.receive(frame(*one)):
                talk.respond(asked.stream, 200, [], b"ok")
    except Broken:
        assert said(talk)[-1].kind == GOAWAY


def test_bodies_count_until_their_calls_are_answered(talk: Conversation) -> None:
    """Who sends them faster than they are answered would have all of them kept."""
    body = b"x" * (MOST - 20_000)
    for stream in (1, 3):
        assert [one.length for one in talk.receive(call(stream, "/a", body))] == [len(body)]
    assert talk.receive(call(5, "/a", body)) == []
    refused = [one for one in said(talk) if one.kind == RESET]
    assert [(one.stream, numbers(one.load)) for one in refused] == [(5, (11,))]
    talk.respond(1, 200, [], b"ok")
    assert [one.stream for one in talk.receive(call(7, "/a", body))] == [7]
