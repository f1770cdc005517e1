"""What models.yaml says, what counts of it, and what is said of the rest."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kybernate.api.models import Model, read
from kybernate.errors import ConfigError

ENVIRON = {"HOME": "/home/a", "KEY": 'se"cret', "NUMBER": "7"}


def model(text: str, name: str = "m") -> Model:
    """The one model whose keys are `text`."""
    return read(f"models:\n  {name}:\n    " + text.replace("\n", "\n    "), ENVIRON).file.models[
        name
    ]


def refused(text: str) -> ConfigError:
    """What is said against the file."""
    with pytest.raises(ConfigError) as caught:
        read(text, ENVIRON)
    return caught.value


def test_a_model_needs_a_command_and_has_defaults() -> None:
    one = model("cmd: serve --port ${PORT}")
    assert one.argv == ("serve", "--port", "5800")
    assert (one.address, one.check_endpoint, one.ttl, one.weight) == (
        "127.0.0.1:5800",
        "/health",
        0.0,
        100,
    )
    assert (one.health_check_timeout, one.unload_timeout, one.devices) == (120.0, 10.0, None)
    assert refused("models: {m: {ttl: 3}}").field == "models.m.cmd"
    assert refused("models: {m: }").field == "models.m"
    assert read("", {}).file.models == {}


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("cmd: s ${PORT}\nttl: 3x", "ttl", "write for example 30s"),
        ("cmd: s ${PORT}\nttl: .nan", "ttl", "30s, 10m, 2h or 7d"),
        ("cmd: s ${PORT}\nvram: 22 boxes", "vram", "24Gi"),
        ("cmd: s ${PORT}\ngpus: [0, 0]", "gpus", "different indices"),
        ("cmd: s ${PORT}\ngpus: 0", "gpus", "at least 1"),
        ("cmd: s ${PORT}\ngpus: []", "gpus", "[0, 1]"),
        ("cmd: '\"s'", "cmd", "taken apart"),
        ("cmd: '# only'", "cmd", "empty"),
        ("cmd: s ${PORT}\nproxy: https://x", "proxy", "http://127.0.0.1:PORT"),
        ("cmd: s\nproxy: http://127.0.0.1:${PORT}", "proxy", "put ${PORT} into cmd"),
        ("cmd: s ${PORT}\nalias: [a]", "alias", "did you mean aliases?"),
        ("cmd: s ${PRT}", "cmd", "${PRT}, which no macro defines"),
        ("cmd: s ${PID}", "cmd", "${PID}, which no macro defines"),
        ("cmd: s ${env.NOPE}", "cmd", "NOPE is not set"),
        ("cmd: s ${PORT}\nmacros: {PORT: 3}", "macros.PORT", "Kybernate's own"),
        ("cmd: s ${PORT}\nmacros: {a: 'x${a}'}", "macros.a", "uses itself"),
        ("cmd: s ${PORT}\nmacros: {a: [1]}", "macros.a", "a text, a number"),
        ("cmd: s ${PORT}\nenv: [a b]", "env", "NAME=value"),
        ("cmd: s ${PORT}\nenv: {A=B: 1}", "env", "NAME=value"),
        ('cmd: s ${PORT}\nenv: {A: "x\\0"}', "env", "NAME=value"),
        ('cmd: "s\\0 ${PORT}"', "cmd", "leave it out"),
        ("cmd: s ${PORT}\nfilters: 3", "filters", "must be a mapping"),
        ("cmd: s ${PORT}\ncheckEndpoint: health", "checkEndpoint", "pattern"),
        ("cmd: s ${PORT}\nport: 70000", "port", "65535"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write_instead(
    text: str, field: str, said: str
) -> None:
    error = refused("models:\n  m:\n    " + text.replace("\n", "\n    "))
    assert error.field.startswith(f"models.m.{field}")
    assert said in error.problem


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("models: [", "line 1"),
        ("models: {a: {cmd: x}}\nmodels: {}", "line 2"),
        ("- a", "the file"),
        ("listen: here", "listen"),
        ("listen: 127.0.0.1:70000", "listen"),
        ("apiKeys: ['']", "apiKeys"),
        ("apiKeys: ['a b']", "apiKeys"),
        ("apiKey: [x]", "apiKey"),
        ("startPort: 0", "startPort"),
        ("startPort: 65535\nmodels: {a: {cmd: 's ${PORT}'}, b: {cmd: 's ${PORT}'}}", "startPort"),
        ("logLevel: loud", "logLevel"),
        ("upstream: {ignorePaths: ['(']}", "upstream.ignorePaths"),
        (
            "models: {a: {cmd: 's ${PORT}', aliases: [b]}, b: {cmd: 's ${PORT}'}}",
            "models.a.aliases",
        ),
        ("groups: {g: {members: []}}\nrouting: {router: {use: group}}", "groups"),
        ("routing: {router: {use: other}}", "routing.router.use"),
        (
            "models: {a: {cmd: 's ${PORT}'}}\ngroups: {g: {members: [a]}, h: {members: [a]}}",
            "groups.h.members",
        ),
        ("models: 3", "models"),
        ("macros: 3", "macros"),
        ("a: " + "[" * 60 + "]" * 60, "the file"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole(text: str, field: str) -> None:
    assert refused(text).field == field


def test_macros_use_those_above_them_and_keep_their_kind() -> None:
    text = """
macros:
  server: >
    serve --port ${PORT}
  ctx: 4096
  args: --ctx ${ctx}
models:
  a:
    macros: {ctx: 8192, temp: 0.7}
    cmd: |
      # ${nobody} reads this
      ${server} ${args} \\
      --name '${MODEL_ID} x'
    metadata: {port: "${PORT}", temp: "${temp}", all: ["${temp} of ${MODEL_ID}"]}
    filters: {setParamsByID: {"${MODEL_ID}:high": {effort: high}}}
    cmdStop: stop ${PID}
"""
    one = read(text, {}).file.models["a"]
    assert one.argv == ("serve", "--port", "5800", "--ctx", "8192", "--name", "a x")
    assert one.metadata == {"port": 5800, "temp": 0.7, "all": ["0.7 of a"]}
    assert one.filters.set_params_by_id == {"a:high": {"effort": "high"}}
    assert one.cmd_stop == "stop ${PID}"


def test_an_environment_value_is_a_text_whatever_it_looks_like() -> None:
    one = model("cmd: s ${PORT} ${env.HOME}\nname: '${env.KEY}'\nweight: ${env.NUMBER}")
    assert (one.argv[-1], one.name, one.weight) == ("/home/a", 'se"cret', 7)


def test_ports_are_given_out_by_name_and_kept_when_the_file_is_read_again() -> None:
    text = "models: {b: {cmd: 's ${PORT}'}, c: {cmd: 's ${PORT}', port: 5800}}"
    first = read(text, {})
    assert first.ports == {"b": 5801, "c": 5800}
    more = text[:-1] + ", a: {cmd: 's ${PORT}'}}"
    assert read(more, {}, first.ports).ports == {"b": 5801, "c": 5800, "a": 5802}


def test_a_port_that_the_command_names_needs_no_proxy() -> None:
    assert model("cmd: s --listen-port 9999 --x").address == "127.0.0.1:9999"
    assert model("cmd: s --port=9998").address == "127.0.0.1:9998"
    told = read("models: {m: {cmd: s}}", {})
    assert told.file.models["m"].address == "127.0.0.1:5800"
    assert "must listen on $PORT" in told.warnings[0]
    assert model("cmd: s\nproxy: http://[::1]:99/base/").address == "[::1]:99"
    assert model("cmd: s\nproxy: http://[::1]:99/base/").base == "/base"


def test_models_with_one_address_are_told_of() -> None:
    told = read("models: {a: {cmd: s --port 9}, b: {cmd: t --port 9}}", {})
    assert told.file.rivals("a") == ("b",)
    assert any("models.a: has the address of b" in one for one in told.warnings)


@pytest.mark.parametrize("env", ["[HF_TOKEN: hf_1]", "['HF_TOKEN hf_1']", "{A B: hf_1}", "hf_1"])
def test_a_key_in_a_variable_that_is_written_wrong_stays_out_of_the_log(env: str) -> None:
    assert "hf_1" not in str(refused(f"models: {{m: {{cmd: 's ${{PORT}}', env: {env}}}}}"))


def test_anchors_that_stand_for_more_than_any_file_are_refused() -> None:
    rows = [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 7)]
    assert "fewer anchors" in str(refused("\n".join(["x0: &x0 [a, a]", *rows])))


def test_devices_come_from_gpus_or_the_commands_environment() -> None:
    assert model("cmd: s ${PORT}\ngpus: 2").devices == 2
    assert model("cmd: s ${PORT}\ngpus: [1, 3]").devices == (1, 3)
    assert model("cmd: s ${PORT}\nenv: ['CUDA_VISIBLE_DEVICES=1,3']").devices == (1, 3)
    assert model("cmd: s ${PORT}\nenv: {CUDA_VISIBLE_DEVICES: GPU-1a}").devices is None
    assert model("cmd: s ${PORT}\nenv: {A: 1, B: true}").env == (("A", "1"), ("B", "true"))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("90", 90), ("'90'", 90), ("1m30s", 90), ("7d", 604800), ("0.5h", 1800), ("0", 0)],
)
def test_times(said: str, seconds: float) -> None:
    assert model(f"cmd: s ${{PORT}}\nttl: {said}").ttl == seconds


def test_a_model_without_ttl_has_the_files() -> None:
    text = "globalTTL: 60\nmodels: {a: {cmd: 's ${PORT}'}, b: {cmd: 's ${PORT}', ttl: 0}}"
    models = read(text, {}).file.models
    assert (models["a"].ttl, models["b"].ttl) == (60.0, 0.0)


@pytest.mark.parametrize("said", ["22GiB", "22Gi", "22 GiB", str(22 * 2**30)])
def test_sizes(said: str) -> None:
    assert model(f"cmd: s ${{PORT}}\nvram: {said}").vram == 22 * 2**30


def test_names_that_look_like_something_else() -> None:
    told = read("models: {on: {cmd: 's ${PORT}', aliases: [no, '1']}, 7: {cmd: 's ${PORT}'}}", {})
    assert told.file.names == {"on": "on", "no": "on", "1": "on", "7": "7"}


def test_keys_that_mean_nothing_are_told_of_and_left_out() -> None:
    text = """
sendLoadingState: true
peers: {x: {proxy: http://x, models: [a]}}
somethingNew: 3
models:
  a.b:
    cmd: s ${PORT}
    sendLoadingState: false
    timeouts: {keepalive: 3, connect: 4, responseHeader: 5}
groups: {g: {members: [a.b, nobody]}}
hooks: {on_startup: {preload: [nobody, a.b]}}
"""
    told = read(text, {})
    assert [one.partition(": ")[0] for one in told.warnings] == [
        "sendLoadingState",
        "peers",
        "somethingNew",
        "models.a.b.sendLoadingState",
        "models.a.b.timeouts.keepalive",
        "models.a.b.timeouts.connect",
        "groups.g.members",
        "hooks.on_startup.preload",
    ]
    assert told.file.models["a.b"].timeouts.response_header == 5
    assert told.file.groups["g"].members == ("a.b",)
    assert told.file.hooks.on_startup.preload == ("a.b",)


def test_groups_and_priority_are_found_below_routing() -> None:
    text = """
models: {a: {cmd: "s ${PORT}", aliases: [x]}}
routing:
  router: {use: group, settings: {groups: {g: {members: [a], swap: false}}}}
  scheduler: {use: fifo, settings: {fifo: {priority: {x: 5}}}}
"""
    file = read(text, {}).file
    assert file.groups["g"].members == ("a",)
    assert not file.groups["g"].swap
    assert file.priority == {"a": 5}


def test_filters_never_touch_the_models_name() -> None:
    one = model(
        "cmd: s ${PORT}\nfilters:\n  stripParams: 'model, top_k,top_k'\n"
        "  setParams: {model: x, temperature: 0.5, stop: null}\n"
        "  setParamsByID: {m:hot: {temperature: 2, model: y}}"
    )
    request = {"model": "m:hot", "top_k": 3, "temperature": 1}
    one.filters.apply(request, "m:hot")
    assert request == {"model": "m:hot", "temperature": 2, "stop": None}


def read_or_refused(text: str) -> None:
    """Either it is read, or a sentence names what is wrong."""
    error: ConfigError | None = None
    try:
        read(text, {})
    except ConfigError as caught:
        error = caught
    assert error is None or (error.field and error.problem)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    read_or_refused(text)


KEYS = st.sampled_from(["cmd", "models", "filters", "env", "port", "proxy", "groups", "members"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_shape_is_read_or_refused_in_a_sentence(value: object) -> None:
    for shape in (value, {"models": {"m": value}}, {"models": {"m": {"cmd": "s", "env": value}}}):
        read_or_refused(yaml.safe_dump(shape))


def test_an_error_does_not_show_a_key() -> None:
    assert "secret" not in str(refused("apiKeys: ['a secret']"))


@pytest.mark.parametrize(
    ("group", "pinned"),
    [("persistent: true, swap: false", True), ("persistent: true", False), ("swap: false", False)],
)
def test_a_persistent_group_that_does_not_swap_is_pinned(group: str, pinned: bool) -> None:
    text = f"models: {{a: {{cmd: 's ${{PORT}}'}}}}\ngroups: {{g: {{members: [a], {group}}}}}"
    assert read(text, {}).file.models["a"].pin is pinned


@pytest.mark.parametrize("name", ["1.10", "007", "0x10", "1e3", "TRUE", "null"])
def test_a_model_is_called_as_it_is_written(name: str) -> None:
    file = read(f"models: {{{name}: {{cmd: 's ${{PORT}}'}}}}", {}).file
    assert list(file.models) == [name]


@pytest.mark.parametrize(
    "other",
    ["cmd: 's --port 5800'", "cmd: s, port: '5800'", "cmd: s, proxy: 'http://127.0.0.1:5800'"],
)
@pytest.mark.parametrize("before", [{}, {"a": 5800}])
def test_no_port_is_given_that_the_file_names(other: str, before: dict[str, int]) -> None:
    file = read(f"models: {{a: {{cmd: 's ${{PORT}}'}}, b: {{{other}}}}}", {}, before).file
    assert (file.models["a"].port, file.models["b"].address) == (5801, "127.0.0.1:5800")


@pytest.mark.parametrize("before", [{}, {"a": 5800}])
def test_a_model_may_be_reached_at_the_port_that_it_is_given(before: dict[str, int]) -> None:
    text = "models: {a: {cmd: 's ${PORT}', proxy: 'http://127.0.0.1:5800'}}"
    model = read(text, {}, before).file.models["a"]
    assert (model.port, model.address) == (5800, "127.0.0.1:5800")
