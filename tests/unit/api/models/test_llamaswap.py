"""Each key of llama-swap's configuration counts here, or a warning says that it does not.

The keys are those of its schema and of its loader at commit 0bdb372 (August 2026).
"""

from __future__ import annotations

from typing import Any

import yaml

from kybernate.api.models import read

TOP = (
    "apiKeys captureBuffer globalTTL groups healthCheckTimeout hooks includeAliasesInList logLevel "
    "logRequests logTimeFormat logToStdout macros matrix metricsMaxInMemory models peers "
    "performance profiles routing selectors sendLoadingState startPort store ui unloadTimeout "
    "upstream"
)
MODEL = (
    "aliases capabilities checkEndpoint cmd cmdStop compat concurrencyLimit description env "
    "filters macros metadata name proxy sendLoadingState timeouts ttl unlisted unloadTimeout "
    "useModelName"
)

VALUES: dict[str, Any] = {
    "apiKeys": ["sk-1", "${env.KEY}"],
    "captureBuffer": 15,
    "globalTTL": 0,
    "groups": {},
    "healthCheckTimeout": 500,
    "hooks": {"on_startup": {"preload": ["m"]}},
    "includeAliasesInList": False,
    "logLevel": "info",
    "logRequests": True,
    "logTimeFormat": "",
    "logToStdout": "proxy",
    "macros": {"ctx": 4096, "temp": 0.7, "args": "--ctx ${ctx}"},
    "matrix": None,
    "metricsMaxInMemory": 1000,
    "peers": {"p": {"proxy": "http://192.168.1.23", "models": ["x"], "apiKey": "${env.KEY}"}},
    "performance": {"disabled": False, "every": "15s"},
    "profiles": {"coding": {"description": "d", "pins": {"x": "m", "y": None}}},
    "routing": {
        "router": {
            "use": "group",
            "settings": {
                "groups": {"g": {"swap": True, "exclusive": True, "members": ["m", "absent"]}},
                "matrix": {"vars": {"a": "m"}, "sets": {"s": "a"}, "evict_costs": {"a": 3}},
            },
        },
        "scheduler": {"use": "fifo", "settings": {"fifo": {"priority": {"m": 10, "absent": 1}}}},
    },
    "selectors": {"s": {"strategy": "warm", "targets": ["m"]}},
    "sendLoadingState": True,
    "startPort": 10001,
    "store": {"path": "/x"},
    "ui": {"activity": {"session_id": ["X-Session-ID"]}},
    "unloadTimeout": 10,
    "upstream": {"ignorePaths": [r".*\.(js|css)$", r"^\/ws$|^\/api\/jobs$"]},
    "models": {
        "m": {
            "aliases": ["gpt-4o-mini"],
            "capabilities": {
                "in": ["text", "audio", "image"],
                "out": ["text"],
                "tools": True,
                "reranker": False,
                "context": 32000,
            },
            "checkEndpoint": "/custom",
            "cmd": "# comment\nserver --port ${PORT}\n${args} --temperature ${temp}\n",
            "cmdStop": "docker stop ${MODEL_ID} ${PID}",
            "compat": {"ignoreWebsockets": True},
            "concurrencyLimit": 0,
            "description": "d",
            "env": ["CUDA_VISIBLE_DEVICES=0,1,2"],
            "filters": {
                "stripParams": "temperature, top_p, top_k",
                "setParams": {"temperature": 0.7},
                "setParamsByID": {"${MODEL_ID}:high": {"effort": "high"}},
            },
            "macros": {"ctx": 16384},
            "metadata": {"port": "${PORT}", "list": [1, 1.5, "${temp}"]},
            "name": "M",
            "proxy": "http://127.0.0.1:8999",
            "sendLoadingState": False,
            "timeouts": {
                "connect": 30,
                "keepalive": 0,
                "responseHeader": 60,
                "tlsHandshake": 10,
                "expectContinue": 1,
                "idleConn": 90,
            },
            "ttl": 60,
            "unlisted": True,
            "unloadTimeout": 10,
            "useModelName": "own",
        }
    },
}


def test_the_values_below_have_every_key() -> None:
    assert " ".join(sorted(VALUES)) == TOP
    assert " ".join(sorted(VALUES["models"]["m"])) == MODEL


def test_a_file_with_every_key_runs_and_warns_of_those_that_mean_nothing() -> None:
    told = read(yaml.safe_dump(VALUES, sort_keys=False), {"KEY": "sk-2"})
    assert sorted(one.partition(":")[0] for one in told.warnings) == [
        "captureBuffer",
        "groups.g.members",
        "logRequests",
        "logTimeFormat",
        "logToStdout",
        "metricsMaxInMemory",
        "models.m.sendLoadingState",
        "models.m.timeouts.connect",
        "models.m.timeouts.expectContinue",
        "models.m.timeouts.idleConn",
        "models.m.timeouts.keepalive",
        "models.m.timeouts.tlsHandshake",
        "peers",
        "performance",
        "priority",
        "profiles",
        "selectors",
        "sendLoadingState",
        "store",
        "ui",
    ]
    assert not any("is no key of this file" in one for one in told.warnings)
    model = told.file.models["m"]
    assert " ".join(model.argv) == "server --port 10001 --ctx 16384 --temperature 0.7"
    assert (model.address, model.ttl, model.devices) == ("127.0.0.1:8999", 60.0, (0, 1, 2))
    assert told.file.names["m:high"] == "m"
    assert told.file.api_keys == ("sk-1", "sk-2")


def test_a_matrix_in_use_is_warned_of() -> None:
    text = "models: {m: {cmd: 's ${PORT}'}}\nmatrix: {vars: {a: m}, sets: {s: a}}"
    assert [one.partition(":")[0] for one in read(text, {}).warnings] == ["matrix"]


def test_the_old_spelling_of_strip_params_counts() -> None:
    text = "models: {m: {cmd: 's ${PORT}', filters: {strip_params: 'top_k, top_p'}}}"
    told = read(text, {})
    assert told.warnings == ()
    assert told.file.models["m"].filters.strip_params == ("top_k", "top_p")
