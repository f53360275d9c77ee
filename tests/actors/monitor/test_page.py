"""The page in a browser: what it shows, narrow and wide, light and dark, by keyboard."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import GroupConsumer, Producer

pytestmark = pytest.mark.takes(25)

WAIT_S = 60
# text that is seen, whose colour is too near to what is below it
TOO_FAINT = """
(() => {
  const parts = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (c) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = parts(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("svg, noscript, .skip")) continue;
    const [a, b] = [parts(getComputedStyle(node).color).slice(0, 3), below(node)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${node.tagName} ${node.textContent.slice(0, 30)} ${ratio}`);
  }
  return found;
})()
"""
# what has no name for those who cannot see it
NAMELESS = """
[...document.querySelectorAll("a, button, input, select, svg, [role=img], [tabindex='0']")]
  .filter((e) => e.checkVisibility() && !e.closest("svg svg"))
  .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()))
  .map((e) => e.outerHTML.slice(0, 100))
"""
VIEWS = {
    "": "Actors",
    "topics": "Topics and what they hold",
    "topic?name=orders": "Queues",
    "groups": "Groups and how far",
    "group?name=billing": "Lag of each queue",
    "messages?topic=orders&queue=0": "Messages",
    "message?topic=orders&queue=0&offset=0": "Properties",
    "dead-letters": "Groups with dead letters",
    "files": "Deletions",
    "recoveries": "Every start was clean",
}


@pytest.fixture(scope="module")
def page(monitored: Any) -> str:
    """A broker with some messages and a group that has not had them all."""
    with Producer(monitored.produce) as producer:
        for number in range(12):
            body = b'{"id": %d, "note": "<img src=x onerror=alert(1)>"}' % number
            producer.send("orders", body, keys=f"k{number}", queue=0).result(WAIT_S)
    with GroupConsumer(
        monitored.status()["endpoints"]["group"], group="billing", topics="orders", start="first"
    ) as group:
        deadline = time.monotonic() + WAIT_S
        while not (came := group.poll(1.0)):
            assert time.monotonic() < deadline
        came[0].ack()
    return f"{monitored.monitor}/"


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_shows_itself_narrow_and_dark_with_names_and_contrast(
    browser: Any, page: str, view: str, picture: Callable[[str], Path]
) -> None:
    for width, dark in ((1280, False), (360, True)):
        browser.look(width, dark=dark)
        browser.open(f"{page}#/{view}")
        browser.until(f"document.getElementById('main')?.innerText.includes({VIEWS[view]!r})")
        browser.until("document.getElementById('state')?.className === 'good'")
        assert browser.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        assert browser.run(TOO_FAINT) == []
        assert browser.run(NAMELESS) == []
        assert browser.run("document.querySelectorAll('[role=alert]').length") == 0
        name = view.partition("?")[0] or "pipeline"
        browser.screenshot(picture(f"{name}-{width}{'-dark' if dark else ''}"))
    assert browser.complaints == [], "nothing fails, and the policy refuses nothing"


def test_the_pipeline_is_drawn_with_every_stage_and_its_distance(browser: Any, page: str) -> None:
    browser.look(1280, dark=False)
    browser.open(page)
    drawn = "[...document.querySelectorAll('svg.pipeline text')].map((e) => e.textContent)"
    browser.until(f"{drawn}.includes('0 B')")
    texts = browser.run(drawn)
    for name in ("writer", "committer", "flusher", "reput", "reader", "allocator", "monitor"):
        assert name in texts
    assert "gateway" not in texts, "this broker has none"
    for said in ("producer", "consumer", "pool", "commitlog/", "segments", "half messages"):
        assert said in texts, "as in the README"
    at = texts.index("flushed")
    assert int(texts[at + 1].replace(",", "")) > 0, "a log offset has a line of its own"
    sticks_out = """[...document.querySelectorAll("svg.pipeline rect")].filter((box) => {
      const right = box.getBoundingClientRect().right;
      for (let e = box.nextElementSibling; e?.tagName === "text"; e = e.nextElementSibling)
        if (e.getBoundingClientRect().right > right) return true;
    }).length"""
    assert browser.run(sticks_out) == 0


def test_a_box_has_room_for_the_offsets_of_terabytes(browser: Any, page: str) -> None:
    browser.look(1280, dark=False)
    browser.open(page)
    browser.until("document.querySelector('svg.pipeline')")
    assert browser.run("""(async () => {
      const { pipeline } = await import("/charts.js");
      const actor = { name: "reput", state: "running", pid: 4194304, position: "dispatched" };
      const told = { kind: () => "", behind: () => "", distance: () => ["", ""],
        count: () => "9,999,999,999,999", restarts: () => "99 restarts" };
      const found = pipeline({ actors: [actor], pipeline: ["reput"] }, 150, told);
      document.getElementById("main").replaceChildren(found);
      found.style.width = "154px";
      const right = (e) => e.getBoundingClientRect().right;
      const [box, ...texts] = [...found.querySelectorAll("rect, text")].map(right);
      return texts.every((text) => text < box);
    })()""")


def test_a_body_is_shown_as_json_text_or_hex_and_never_as_markup(browser: Any, page: str) -> None:
    browser.open(f"{page}#/message?topic=orders&queue=0&offset=3")
    browser.until("document.querySelector('pre')?.textContent.includes('\"id\": 3')")
    assert browser.run("document.querySelectorAll('main img').length") == 0
    button = "[...document.querySelectorAll('main button')].find((b) => b.textContent === 'hex')"
    browser.run(f"{button}.click()")
    assert browser.run("document.querySelector('pre').textContent").startswith("7b 22 69 64")
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "true"


def test_a_view_is_reached_and_a_message_found_by_keyboard_alone(browser: Any, page: str) -> None:
    browser.look(1280, dark=False)
    browser.open(page)
    browser.until("document.querySelector('svg.pipeline')")
    focus = "document.activeElement.textContent.trim()"
    browser.press("Tab", 9)
    assert browser.run(focus) == "Skip to the content"
    for name in ("Pipeline", "Topics", "Groups", "Message"):
        browser.press("Tab", 9)
        assert browser.run(focus) == name
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter", 13)
    browser.until("document.querySelector('form input[name=topic]')")
    assert browser.run("document.querySelector('nav [aria-current]').textContent") == "Message"
    browser.until("document.activeElement.id === 'main'")
    for _ in range(20):
        if browser.run("document.activeElement.name") == "topic":
            break
        browser.press("Tab", 9)
    browser.command("Input.insertText", text="orders")
    browser.press("Tab", 9)
    browser.command("Input.insertText", text="k5")
    browser.press("Enter", 13)
    browser.until("document.querySelector('pre')?.textContent.includes('\"id\": 5')")


# the next look at the broker has replaced what was marked
MARK = "document.querySelector('main table').isOld = true"
REPLACED = "document.querySelector('main table')?.isOld === undefined"


def test_a_refresh_leaves_the_keyboard_at_its_link(browser: Any, page: str) -> None:
    """Else nobody gets past the rows that are reached within two seconds."""
    browser.look(1280, dark=False)
    browser.open(f"{page}#/groups")
    link = "[...document.querySelectorAll('main a')].find((a) => a.textContent === 'billing')"
    browser.until(f"{link} && document.activeElement === document.body")
    browser.until("document.getElementById('state').className === 'good'")
    browser.run(f"{link}.focus(); {MARK}")
    browser.until(REPLACED)
    assert browser.run("document.activeElement.textContent") == "billing"


def test_a_refresh_leaves_a_wide_table_where_it_was_moved_to(browser: Any, page: str) -> None:
    browser.look(360, dark=True)
    browser.open(page)
    browser.until("document.querySelector('main table')")
    browser.run(f"document.querySelector('.scroll').scrollLeft = 60; {MARK}")
    browser.until(REPLACED)
    assert browser.run("document.querySelector('.scroll').scrollLeft") == 60


def test_nothing_is_refreshed_while_text_is_selected(browser: Any, page: str) -> None:
    browser.look(1280, dark=False)
    browser.open(page)
    browser.until("document.querySelector('main table')")
    browser.run("window.due = []; window.setTimeout = (look) => due.push(look)")
    browser.until("due.length === 1")
    browser.run(f"{MARK}; getSelection().selectAllChildren(document.querySelector('main td'))")
    browser.run("due.pop()()")
    assert browser.run("due.length") == 1, "it looks again later"
    browser.run("getSelection().removeAllRanges(); due.pop()()")
    browser.until(REPLACED)


def test_a_late_answer_does_not_take_the_place_of_a_newer_view(browser: Any, page: str) -> None:
    browser.open(page)
    browser.until("document.querySelector('svg.pipeline')")
    browser.run("""
      window.held = [];
      window.real = window.fetch;
      window.fetch = (url) => String(url).includes("/api/topics")
        ? new Promise((answer) => held.push(() => answer(real(url)))) : real(url);
      location.hash = "#/topics";
    """)
    browser.until("held.length === 1")
    browser.run("location.hash = '#/files'")
    shown = "document.getElementById('main').innerText"
    browser.until(f"{shown}.includes('Deletions')")
    browser.run("held[0]()")
    # whoever asks now is answered after it
    browser.run("""(async () => {
      await (await real("/api/topics")).json();
      await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50));
    })()""")
    assert "Deletions" in browser.run(shown)
    assert browser.run("document.title").startswith("Files")


def test_a_time_is_asked_in_the_zone_in_which_times_are_shown(browser: Any, page: str) -> None:
    browser.command("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
    try:
        browser.open(f"{page}#/message?topic=orders&since=2020-01-02T03:04")
        browser.until("document.querySelector('main section')")
        browser.until(
            "document.querySelector('label input[name=since]')?.labels[0].innerText.includes('UTC')"
        )
        asked = """performance.getEntriesByType("resource").map((each) => new URL(each.name))
          .filter((url) => url.pathname === "/api/message")
          .map((url) => url.searchParams.get("time"))"""
        assert browser.run(asked) == ["1577934240000"]
    finally:
        browser.command("Emulation.setTimezoneOverride", timezoneId="")


def test_a_disk_that_does_not_fill_is_told_from_one_of_which_that_is_unknown(
    browser: Any, page: str
) -> None:
    browser.open(page)
    browser.until("document.querySelector('svg.pipeline')")
    browser.run("""
      window.real = window.fetch;
      window.fetch = async (url) => {
        const found = await (await real(url)).json();
        const files = String(url).includes("/api/files");
        return Response.json(files ? { ...found, bytes_per_s: rate, full_in_s: null } : found);
      };
    """)
    for rate, said in (("null", "unknown"), ("0", "not at this rate")):
        browser.run(f"window.rate = {rate}; location.hash = '#/files?{rate}'")
        shown = "document.getElementById('main').innerText"
        browser.until(f"{shown}.includes('disk full\\n{said}')")


def test_what_is_not_known_is_said_to_be_unknown(browser: Any, page: str) -> None:
    browser.open(f"{page}#/topic?name=nobody")
    browser.until("document.querySelector('[role=alert]')?.textContent.includes('no topic')")
    browser.complaints.clear()  # the 404 of just now


def test_the_first_paint_is_timed_by_the_browser(browser: Any, page: str) -> None:
    """The figure is measured on a quiet machine; here it is there, and needs one round of files."""
    browser.open(page)
    browser.until("performance.getEntriesByName('first-contentful-paint').length")
    names = browser.until(
        "document.querySelector('svg.pipeline') &&"
        "performance.getEntriesByType('resource').map((e) => new URL(e.name).pathname)"
    )
    assert {"/page.css", "/page.js", "/charts.js", "/api/overview"} <= set(names)
