"""The model that a body names, in JSON or in a form, and the body as its seat gets it.

Only what is looked for is taken apart: a body of 31 MiB made of empty lists would take 900 MiB as
Python's objects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from kybernate.dataclass import dataclass
from proxy.openai import ApiError, model_of

if TYPE_CHECKING:
    from kybernate.api.models import Model

_FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
_MOST_FIELDS = 10_000
_MOST_PARTS = 1000
_LONGEST_NAME = 512
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_FIELD = re.compile(
    rb'(?:^|\r\n)content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r\n|$)', re.IGNORECASE
)


@dataclass(slots=True)
class Named:
    """The model that a body names, and where in a form's parts its name stands."""

    name: str
    start: int = 0
    end: int = 0


def kind_of(stated: str, body: bytearray) -> str:
    """The content type of a body. An object in JSON is none of a form: `curl -d` says so of all
    that it sends."""
    return JSON if stated == _FORM and body[:64].lstrip().startswith(b"{") else stated


def named(kind: str, header: str, body: bytearray) -> Named:
    """The model that a body of this content type names. Raises ApiError (400) if none."""
    if kind == "multipart/form-data":
        return _in_parts(header, body)
    if kind == _FORM:
        return Named(_checked(dict(_form(body)).get("model", "")))
    return Named(model_of(body))


def prepared(kind: str, body: bytearray, found: Named, model: Model) -> bytearray:
    """The body as the model's server gets it: its own name, and the file's filters."""
    own = model.use_model_name
    if kind == "multipart/form-data":
        if own:
            body[found.start : found.end] = own.encode()
        return body
    if kind == _FORM:
        fields = [(key, own if own and key == "model" else value) for key, value in _form(body)]
        return bytearray(urlencode(fields).encode()) if own else body
    if not own and not model.filters:
        return body
    request: dict[str, Any] = _decoded(body)
    model.filters.apply(request, found.name)
    if own:
        request["model"] = own
    return bytearray(msgspec.json.encode(request))


def _decoded(body: bytearray) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"The body isn't a JSON object: {error}.") from error


def _form(body: bytearray) -> list[tuple[str, str]]:
    try:
        text = body.decode()
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise ApiError(400, "invalid_form", f"The body isn't a form: {error}.") from error


def _in_parts(header: str, body: bytearray) -> Named:
    boundary = _BOUNDARY.search(header)
    if boundary is None:
        raise ApiError(400, "invalid_form", "The Content-Type names no boundary of the parts.")
    mark = b"--" + (boundary[1] or boundary[2]).encode()
    at = body.find(mark)
    for _ in range(_MOST_PARTS):
        if at < 0:
            break
        begin = at + len(mark)
        head_end = body.find(b"\r\n\r\n", begin, begin + 16384)
        after = body.find(b"\r\n" + mark, begin)
        if head_end < 0 or after < 0:
            break
        if _FIELD.search(bytes(body[begin:head_end])):
            start = head_end + 4
            text = bytes(body[start:after][: _LONGEST_NAME * 4])
            return Named(_checked(text.decode(errors="replace").strip()), start, after)
        at = after + 2
    return Named(_checked(""))


def _checked(name: str) -> str:
    if not name or len(name) > _LONGEST_NAME:
        reason = f"Name a model in the form's field model, in at most {_LONGEST_NAME} characters."
        raise ApiError(400, "model_missing", reason)
    return name
