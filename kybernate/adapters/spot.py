"""When a cloud takes a spot instance away, as its metadata server tells.

AWS tells two minutes before (EC2 user guide, "Spot Instance interruption notices"), by IMDSv2: a
token first. Google's tells about 30 seconds before (Compute Engine, "Spot VMs"): no time is in it.
"""

from __future__ import annotations

import http.client
import json
from datetime import UTC, datetime

from kybernate.errors import RetryableError
from kybernate.settings.common import host_port

_MOST = 4096
_TOKEN_S = 60
_GCE_S = 30.0
_OK, _NONE = 200, 404


def aws(address: str, _now: float, timeout: float) -> float | None:
    """When the instance goes, in seconds since 1970; None if nobody says so. `timeout` in seconds,
    for each of two calls. Raises RetryableError if the server at host:port can't tell."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
    status, token = _call(address, "PUT", "/latest/api/token", lifetime, timeout)
    if status != _OK:
        raise RetryableError(f"{address} gives no token for its metadata: status {status}")
    path, proof = "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}
    status, body = _call(address, "GET", path, proof, timeout)
    if status == _NONE:
        return None
    try:
        # Of stop, hibernate and terminate none leaves anything in memory that would be found again.
        at = datetime.fromisoformat(json.loads(body)["time"])
    except (ValueError, KeyError, TypeError) as error:
        raise RetryableError(f"{address} says what can't be read: status {status}") from error
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()


def gce(address: str, now: float, timeout: float) -> float | None:
    """As `aws`."""
    path, proof = "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
    status, body = _call(address, "GET", path, proof, timeout)
    if status != _OK or body.strip() not in ("TRUE", "FALSE"):
        raise RetryableError(f"{address} says what can't be read: status {status}")
    return now + _GCE_S if body.strip() == "TRUE" else None


CLOUDS = {"aws": aws, "gce": gce}


def _call(
    address: str, method: str, path: str, headers: dict[str, str], timeout: float
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*host_port(address), timeout=timeout)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise RetryableError(f"{address} does not answer: {error}") from error
    finally:
        connection.close()
