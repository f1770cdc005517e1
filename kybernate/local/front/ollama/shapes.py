"""OpenAI's answers as Ollama gives them: a line of JSON for each event, or one for the whole."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

import orjson

from proxy.openai import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

LARGEST = 32 * 2**20
"""Bytes of an answer, or of one event of it."""


class Talk:
    """An answer to chat or generate; a `proxy.relay.asking.Shape`."""

    def __init__(self, model: str, put: Callable[[Json, str], Json], *, streamed: bool) -> None:
        """`put`: where a text, and what else the model says, stand in a line."""
        self.content_type = "application/x-ndjson" if streamed else "application/json"
        self._model = model
        self._put = put
        self._streamed = streamed
        self._rest = bytearray()
        self._begun = time.monotonic_ns()
        self._first: int | None = None
        self._reason = "stop"
        self._usage: Json = {}
        self._calls: dict[int, Json] = {}

    def more(self, chunk: bytes) -> bytes:
        """See `Shape.more`."""
        self._rest += chunk
        if len(self._rest) > LARGEST:
            raise ApiError(502, "answer_too_large", f"An event is larger than {LARGEST} bytes.")
        if not self._streamed:
            return b""
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        return b"".join(self._event(line) for line in lines)

    def end(self) -> bytes:
        """See `Shape.end`."""
        if self._streamed:
            last = self._event(bytes(self._rest))
            said = {"tool_calls": self._told_calls()} if self._calls else {}
            return last + self._line(self._put(said, "") | self._last())
        answer = _json(bytes(self._rest))
        choice = _first(answer.get("choices"))
        self._note(answer, choice)
        message = choice.get("message") or {}
        for number, call in enumerate(message.get("tool_calls") or ()):
            self._calls[number] = call.get("function") or {}
        said = {"tool_calls": self._told_calls()} if self._calls else {}
        if thought := message.get("reasoning_content") or message.get("reasoning"):
            said["thinking"] = thought
        text = message.get("content") or choice.get("text") or ""
        return self._line(self._put(said, text) | self._last())

    def refused(self, body: bytes) -> bytes:
        """See `Shape.refused`."""
        return refused(body)

    def _event(self, line: bytes | bytearray) -> bytes:
        name, _, data = bytes(line).strip().partition(b":")
        if name != b"data" or data.strip() in (b"", b"[DONE]"):
            return b""
        event = _json(data)
        if "error" in event:
            return orjson.dumps({"error": _told(event)}) + b"\n"
        choice = _first(event.get("choices"))
        self._note(event, choice)
        delta = choice.get("delta") or {}
        for call in delta.get("tool_calls") or ():
            self._take_call(call)
        text = delta.get("content") or choice.get("text") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if not text and not thought:
            return b""
        said = {"thinking": thought} if thought else {}
        return self._line(self._put(said, text) | {"done": False})

    def _note(self, event: Json, choice: Json) -> None:
        if self._first is None:
            self._first = time.monotonic_ns()
        self._usage = event.get("usage") or self._usage
        if reason := choice.get("finish_reason"):
            self._reason = "length" if reason == "length" else "stop"

    def _take_call(self, call: Json) -> None:
        number = call.get("index", 0)
        known = self._calls.setdefault(number, {"name": "", "arguments": ""})
        function = call.get("function") or {}
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""

    def _told_calls(self) -> list[Json]:
        calls = [self._calls[number] for number in sorted(self._calls)]
        return [
            {"function": {"name": one.get("name", ""), "arguments": _arguments(one)}}
            for one in calls
        ]

    def _last(self) -> Json:
        now = time.monotonic_ns()
        first = self._first or now
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": now - self._begun,
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": first - self._begun,
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": now - first,
        }

    def _line(self, said: Json) -> bytes:
        line = orjson.dumps({"model": self._model, "created_at": now(), **said})
        return line + b"\n" if self._streamed else line


class Embeddings:
    """An answer to embed; `single`: to embeddings, as it was before."""

    content_type = "application/json"

    def __init__(self, model: str, *, single: bool) -> None:
        self._model = model
        self._single = single
        self._begun = time.monotonic_ns()
        self._body = bytearray()

    def more(self, chunk: bytes) -> bytes:
        """See `Shape.more`."""
        self._body += chunk
        if len(self._body) > LARGEST:
            raise ApiError(502, "answer_too_large", f"The answer is larger than {LARGEST} bytes.")
        return b""

    def end(self) -> bytes:
        """See `Shape.end`."""
        answer = _json(bytes(self._body))
        data = sorted(answer.get("data") or (), key=lambda one: one.get("index", 0))
        vectors = [one.get("embedding") for one in data]
        if self._single:
            return orjson.dumps({"embedding": vectors[0] if vectors else []})
        usage = answer.get("usage") or {}
        return orjson.dumps(
            {
                "model": self._model,
                "embeddings": vectors,
                "total_duration": time.monotonic_ns() - self._begun,
                "load_duration": 0,
                "prompt_eval_count": usage.get("prompt_tokens", 0),
            }
        )

    def refused(self, body: bytes) -> bytes:
        """See `Shape.refused`."""
        return refused(body)


def message(said: Json, text: str) -> Json:
    """Where chat has a text."""
    return {"message": {"role": "assistant", "content": text, **said}}


def response(said: Json, text: str) -> Json:
    """Where generate has a text."""
    return {"response": text, **said}


def refused(body: bytes) -> bytes:
    """A server's error in Ollama's shape."""
    try:
        said = _told(_json(body))
    except ApiError:
        said = body.decode(errors="replace")[:2000]
    return orjson.dumps({"error": said})


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def _arguments(call: Json) -> Any:
    given = call.get("arguments") or "{}"
    try:
        return orjson.loads(given) if isinstance(given, str) else given
    except orjson.JSONDecodeError:
        return {"text": given}


def _told(event: Json) -> str:
    error = event.get("error", event.get("message", ""))
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _first(choices: object) -> Json:
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _json(body: bytes | bytearray) -> Json:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(502, "upstream_failed", "The model's server answered no JSON.") from error
    if not isinstance(found, dict):
        raise ApiError(502, "upstream_failed", "The model's server answered no JSON object.")
    return found
