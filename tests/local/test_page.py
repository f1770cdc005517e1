"""The page in a real browser, before the real service."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.local.conftest import Box, eventually, lives
from tests.local.test_acts import act

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

HOSTILE = "<img src=x onerror=alert(1)>"
SLOW = 30_000


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Whatever goes wrong in it fails the test: what its policy refuses, too."""
    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 900})) as one:
        wrong: list[str] = []
        opened = one.new_page()
        opened.set_default_timeout(SLOW)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda said: wrong.append(said.text) if is_wrong(said) else None)
        yield opened
        assert wrong == []


def is_wrong(said: ConsoleMessage) -> bool:
    # That the server is away, or wants a key, the browser tells as well.
    return said.type == "error" and not said.text.startswith("Failed to load resource")


def show(page: Page, box: Box) -> None:
    page.goto(f"http://127.0.0.1:{box.port}/ui")
    expect(page.locator("#link")).to_have_text("live", timeout=SLOW)


def row(page: Page, model: str) -> Locator:
    name = page.locator(".name > span").get_by_text(model, exact=True)
    return page.locator("#rows tr").filter(has=name)


def state_is(page: Page, model: str, words: str) -> None:
    expect(row(page, model).locator(".state")).to_have_text(words, timeout=SLOW)


def press(page: Page, model: str, word: str) -> None:
    row(page, model).get_by_role("button", name=f"{word} {model}", exact=True).click()


def is_sure(page: Page) -> None:
    page.locator("#sure-yes").click()


def test_it_shows_swaps_as_they_come(box: Box, page: Page):
    box.has("a")
    box.has("b")
    box.start()
    show(page, box)
    state_is(page, "a", "waiting")
    box.ask("a")
    state_is(page, "a", "active")
    expect(page.locator("#gpus")).to_contain_text("a 40 MiB")
    box.ask("b")
    state_is(page, "b", "active")
    state_is(page, "a", "parked in RAM")
    expect(page.locator("#gpus")).not_to_contain_text("a 40 MiB")
    expect(page.locator("#n-parked")).to_have_text("1")
    box.ask("a")
    expect(page.locator("#under")).to_have_text("3 starts and wakes in the last 2 min.")
    page.reload()
    expect(page.locator("#under")).to_have_text("3 starts and wakes in the last 2 min.")
    coloured = page.evaluate(
        """() => {
          const canvas = document.querySelector("#swaps canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Set();
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
          return [...seen].filter((one) => {
            const [r, g, b] = one.split(",").map(Number);
            return Math.max(r, g, b) - Math.min(r, g, b) > 80;
          }).length;
        }"""
    )
    assert coloured >= 2


def test_models_are_parked_woken_pinned_and_unloaded_on_it(box: Box, page: Page):
    box.has("a")
    box.start()
    first = box.ask("a")
    show(page, box)
    press(page, "a", "Park")
    page.get_by_role("button", name="Cancel").click()
    press(page, "a", "Park")
    is_sure(page)
    state_is(page, "a", "parked in RAM")
    expect(page.locator("#said")).to_have_text("a is parked.")
    press(page, "a", "Wake")
    state_is(page, "a", "active")
    press(page, "a", "Pin")
    expect(row(page, "a").locator(".pin")).to_be_visible()
    expect(row(page, "a").get_by_role("button", name="Park a")).to_be_disabled()
    press(page, "a", "Unpin")
    expect(row(page, "a").locator(".pin")).to_have_count(0)
    assert lives(first["pid"])
    press(page, "a", "Unload")
    page.keyboard.press("Escape")
    expect(page.locator("#sure")).not_to_be_visible()
    assert lives(first["pid"])
    press(page, "a", "Unload")
    is_sure(page)
    state_is(page, "a", "waiting")
    eventually(lambda: not lives(first["pid"]))


def test_a_button_stays_under_the_pointer_that_is_down(box: Box, page: Page):
    box.has("a")
    box.start()
    box.ask("a")
    show(page, box)
    # The last of the row to come: it makes a column wider.
    expect(row(page, "a")).to_contain_text("40 MiB")
    row(page, "a").get_by_role("button", name="Log a", exact=True).hover()
    page.mouse.down()
    assert act(box, "park/a")[0] == 200
    told = "async () => Object.values((await import('/ui/state.js')).state.seats)[0].state"
    eventually(lambda: page.evaluate(told) == "parked")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    page.mouse.up()
    expect(page.locator("#log-title")).to_have_text("Log of a")
    state_is(page, "a", "parked in RAM")


def test_it_shows_who_takes_turns_with_which_weight(box: Box, page: Page):
    box.has("a")
    box.has("b", turn="always", weight=200)
    box.start()
    show(page, box)
    state_is(page, "b", "active")
    expect(row(page, "b").locator(".where")).to_have_text("GPU 0 · takes turns, weight 200")
    expect(row(page, "a").locator(".where")).to_have_text("GPU 0")


def test_a_models_log_is_shown_as_it_comes(box: Box, page: Page):
    box.has("a")
    box.start()
    show(page, box)
    press(page, "a", "Log")
    text = page.locator("#log-text")
    expect(page.locator("#log-title")).to_have_text("Log of a")
    box.ask("a")
    expect(text).to_contain_text('"model": "a"', timeout=SLOW)
    page.keyboard.press("Escape")
    expect(page.locator("#log")).not_to_be_visible()


def test_names_and_logs_are_never_html(box: Box, page: Page):
    box.has("a")
    box.models[HOSTILE] = {
        "cmd": "/bin/sh -c 'echo \"<script>alert(1)</script><b>x</b>\"; exec sleep 100'",
        "vram": "1MiB",
        "checkEndpoint": "none",
    }
    box.start()
    show(page, box)

    expect(row(page, HOSTILE)).to_have_count(1)
    press(page, HOSTILE, "Wake")
    press(page, HOSTILE, "Log")
    expect(page.locator("#log-text")).to_contain_text("<script>alert(1)</script><b>x</b>")
    assert page.locator("img").count() == 1  # the page's own
    assert page.locator("#log-text > *").count() == 0


def test_a_model_may_have_any_name(box: Box, page: Page):
    box.has("a")
    box.start()
    show(page, box)
    seen = page.evaluate("""async () => {
        const { state, take } = await import("/ui/state.js?another");
        take("page", { now: 0, models: {} });
        for (const rate of [1, 2]) {
            const models = `{"__proto__": {"rate": ${rate}}, "constructor": {"rate": ${rate}}}`;
            take("change", JSON.parse(`{"now": 0, "models": ${models}}`));
        }
        return [Object.entries(state.models), "rate" in {}, "rate" in Object];
    }""")
    assert seen == [[["__proto__", {"rate": 2}], ["constructor", {"rate": 2}]], False, False]


def test_it_asks_for_a_key_and_keeps_it_to_itself(box: Box, page: Page):
    box.has("a")
    box.keys["apiKeys"] = ["secret"]
    box.start()
    refused: list[int] = []
    page.on("response", lambda answer: refused.append(answer.status))
    page.goto(f"http://127.0.0.1:{box.port}/ui")
    for key, title in (("wrong", "That key is not known here"), ("secret", "")):
        page.locator("#key").fill(key)
        page.keyboard.press("Enter")
        if title:
            expect(page.locator("#key-title")).to_have_text(title)
    state_is(page, "a", "waiting")
    assert refused.count(401) == 2
    press(page, "a", "Wake")
    state_is(page, "a", "active")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
        0, 0, "",
    ]  # fmt: skip


def test_it_needs_no_mouse(box: Box, page: Page):
    box.has("alpha")
    box.has("beta")
    box.start()
    show(page, box)
    page.keyboard.press("/")
    page.keyboard.type("bet")
    expect(row(page, "alpha")).to_be_hidden()
    expect(page.locator("#shown")).to_have_text("1 of 2")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Wake beta")).to_be_focused()
    page.keyboard.press("Enter")
    state_is(page, "beta", "active")
    expect(page.get_by_role("button", name="Park beta")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('tr') !== null")
    page.locator("#swaps").focus()
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")


def test_it_comes_back_with_the_server(box: Box, page: Page):
    box.has("a")
    box.start()
    show(page, box)
    box.end()
    expect(page.locator("#link")).to_contain_text("lost")
    box.start()
    expect(page.locator("#link")).to_have_text("live", timeout=SLOW)
    state_is(page, "a", "waiting")


def contrast_of(page: Page) -> list[str]:
    """Texts whose contrast to what is behind them is below WCAG's 4.5."""
    found: list[str] = page.evaluate(
        """() => {
          const paint = document.createElement("canvas").getContext("2d");
          const rgb = (colour) => {
            paint.clearRect(0, 0, 1, 1);
            paint.fillStyle = colour;
            paint.fillRect(0, 0, 1, 1);
            return [...paint.getImageData(0, 0, 1, 1).data];
          };
          const light = (colour) => {
            const [r, g, b] = rgb(colour).map((one) => {
              const part = one / 255;
              return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (element) => {
            for (let one = element; one; one = one.parentElement) {
              const colour = getComputedStyle(one).backgroundColor;
              if (rgb(colour)[3] === 255) return colour;
            }
            return "white";
          };
          const faint = [];
          for (const element of document.querySelectorAll("body *")) {
            const texts = [...element.childNodes].filter((one) => one.nodeType === 3);
            const own = texts.some((one) => one.data.trim());
            if (!own || !element.checkVisibility() || element.disabled) continue;
            const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) faint.push(`${element.tagName} ${element.textContent}: ${ratio}`);
          }
          return faint;
        }"""
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_texts_can_be_read_in_light_and_dark(box: Box, page: Page, scheme: str):
    box.has("a")
    box.has("b")
    box.start()
    box.ask("a")
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    show(page, box)
    state_is(page, "a", "active")
    assert contrast_of(page) == []
    page.set_viewport_size({"width": 360, "height": 700})
    assert contrast_of(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    left = "(element) => element.getBoundingClientRect().left"
    name, state = row(page, "a").locator(".where"), row(page, "a").locator(".state")
    assert name.evaluate(left) == state.evaluate(left)


def test_a_page_that_is_left_open_takes_nothing_more(box: Box, page: Page):
    """What is told says when it was: nothing is asked for again and again."""
    box.has("a")
    box.start()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    show(page, box)
    before = len(asked)
    box.ask("a")
    state_is(page, "a", "active")
    page.wait_for_timeout(1500)
    assert len(asked) == before
    with urllib.request.urlopen(f"http://127.0.0.1:{box.port}/v1/models", timeout=10) as answer:
        assert json.load(answer)["data"][0]["kyb"]["state"] == "active"
