"""Ollama's requests as OpenAI's. Pure. Each function raises ApiError (400) naming the field."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from proxy.openai import ApiError

Json = dict[str, Any]

_OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
)
"""Options that servers of models know by the same name."""

_PICTURES = {"/9j/": "jpeg", "iVBOR": "png", "R0lG": "gif", "UklG": "webp"}


def decoded(body: bytearray) -> Json:
    """The request. Ollama's clients send JSON whatever they call it."""
    try:
        request = msgspec.json.decode(body or b"{}", type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"The body isn't a JSON object: {error}.") from error
    if not isinstance(request.get("model", ""), str):
        raise _wrong("model", "a model's name")
    return request


def chat(request: Json) -> Json:
    """/api/chat as /v1/chat/completions."""
    messages = _list(request, "messages")
    said = {"messages": _messages(messages), **_shared(request)}
    if tools := _list(request, "tools"):
        said["tools"] = tools
    return said


def generate(request: Json) -> Json:
    """/api/generate as /v1/chat/completions, so that the model's own template is used."""
    user: Json = {"role": "user", "content": _text(request, "prompt")}
    if images := _list(request, "images"):
        user["images"] = images
    system = _text(request, "system")
    first = [{"role": "system", "content": system}] if system else []
    return {"messages": _messages([*first, user]), **_shared(request)}


def complete(request: Json) -> Json:
    """/api/generate with `raw` or `suffix` as /v1/completions: the prompt as it is."""
    said = {"prompt": _text(request, "prompt"), **_shared(request)}
    if suffix := _text(request, "suffix"):
        said["suffix"] = suffix
    return said


def embed(request: Json) -> Json:
    """/api/embed, or /api/embeddings as it was before, as /v1/embeddings."""
    given = request.get("input", request.get("prompt", ""))
    if not isinstance(given, str | list):
        raise _wrong("input", "a text or a list of texts")
    said: Json = {"input": given}
    if isinstance(request.get("dimensions"), int):
        said["dimensions"] = request["dimensions"]
    return said


def is_streamed(request: Json) -> bool:
    """Whether the answer comes in pieces, as it does if nothing else is said."""
    return request.get("stream") is not False


def _shared(request: Json) -> Json:
    options = request.get("options") or {}
    if not isinstance(options, dict):
        raise _wrong("options", 'a mapping such as {"temperature": 0.5}')
    said = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    longest = options.get("num_predict")
    if isinstance(longest, int) and longest > 0:
        said["max_tokens"] = longest
    if form := request.get("format"):
        said["response_format"] = _form(form)
    think = request.get("think")
    if isinstance(think, bool):
        said["chat_template_kwargs"] = {"enable_thinking": think}
    elif isinstance(think, str) and think:
        said["reasoning_effort"] = think
    said["stream"] = is_streamed(request)
    if said["stream"]:
        said["stream_options"] = {"include_usage": True}
    return said


def _form(form: object) -> Json:
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
    raise _wrong("format", '"json" or a JSON schema')


def _messages(messages: list[Any]) -> list[Json]:
    made: list[Json] = []
    calls: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _wrong(f"messages[{number}]", 'an object with "role" and "content"')
        one: Json = {"role": message["role"], "content": _content(message)}
        if told := message.get("tool_calls"):
            one["tool_calls"] = _calls(told, number)
            calls += [call["id"] for call in one["tool_calls"]]
        if message["role"] == "tool":
            # Ollama's answers of tools come in the order of the calls.
            one["tool_call_id"] = calls.pop(0) if calls else f"call_{number}"
        made.append(one)
    return made


def _content(message: Json) -> str | list[Json]:
    text = _text(message, "content")
    images = _list(message, "images")
    if not images:
        return text
    parts: list[Json] = [{"type": "text", "text": text}] if text else []
    for image in images:
        if not isinstance(image, str):
            raise _wrong("images", "a list of pictures in base64")
        kind = next((kind for begin, kind in _PICTURES.items() if image.startswith(begin)), "png")
        url = {"url": f"data:image/{kind};base64,{image}"}
        parts.append({"type": "image_url", "image_url": url})
    return parts


def _calls(told: object, number: int) -> list[Json]:
    if not isinstance(told, list):
        raise _wrong("tool_calls", "a list")
    calls = []
    for at, call in enumerate(told):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _wrong("tool_calls", 'a list of {"function": {"name": …, "arguments": {…}}}')
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        named = {"name": function.get("name", ""), "arguments": text}
        calls.append({"id": f"call_{number}_{at}", "type": "function", "function": named})
    return calls


def _text(request: Json, name: str) -> str:
    value = request.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(name, "a text")
    return value


def _list(request: Json, name: str) -> list[Any]:
    value = request.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(name, "a list")
    return value


def _wrong(name: str, instead: str) -> ApiError:
    return ApiError(400, "invalid_field", f"{name} must be {instead}.")
