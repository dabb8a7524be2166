"""Charts: values that appear, ranges of time in the URL, files, and the report for print."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Locator, Page, Response, expect

from tests.e2e.browser import Visits
from tests.e2e.service import Service

CANVAS = ".uplot .u-over"
COLOURS = """(it) => {
    const { data } = it.getContext("2d").getImageData(0, 0, it.width, it.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""
TIMES = "Response time"
MARGINS_PX = """async (most) => {
    const loaded = performance.getEntriesByType("resource").map((one) => one.name);
    const { TimeChart } = await import(loaded.find((one) => /\\/charts\\b[^/]*[.]js/.test(one)));
    const place = document.createElement("div");
    document.querySelector("main").append(place);
    new TimeChart(place, { title: "wide" }).show(
        [{ label: "weight", color: "--critical" }], { times: [0, 60], values: [[0, most]], range: [0, 60] });
    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "12px system-ui, sans-serif";
    const left = (one) => one.getBoundingClientRect().left;
    return [left(place.querySelector(".u-over")) - left(place), pen.measureText(most.toLocaleString("en")).width];
}"""

IN_A_CHART = """async ({ values, range }) => {
    const loaded = performance.getEntriesByType("resource").map((one) => one.name);
    const { TimeChart } = await import(loaded.find((one) => /\\/charts\\b[^/]*[.]js/.test(one)));
    const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const place = document.createElement("div");
    document.querySelector("main").append(place);
    const chart = new TimeChart(place, { title: "one", top: 10 });
    const times = values.map((_value, at) => 60 * at);
    chart.show([{ label: "x", color: "--violated" }], { times, values: [values], range });
    await drawn();
    const seen = [];
    %s
    place.remove();
    return seen;
}"""
"""What is seen of a chart: the JavaScript in between tells ``seen`` of it."""
PICTURE = IN_A_CHART % 'seen.push(place.querySelector("canvas").toDataURL());'
WORDS = (
    IN_A_CHART
    % """
    chart.say("nothing");
    document.dispatchEvent(new Event("recolour"));
    await drawn();
    seen.push(place.innerText, place.querySelectorAll("canvas").length);"""
)
WALK = (
    IN_A_CHART
    % """
    for (const key of ["ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight"]) {
        place.dispatchEvent(new KeyboardEvent("keydown", { key }));
        await drawn();
        seen.push(Number(place.querySelector("[aria-live]").textContent.split(" ").at(-1)));
    }"""
)


def chart(page: Page, title: str) -> Locator:
    """The figure of a chart that is drawn."""
    figure = page.get_by_role("figure", name=title)
    expect(figure.locator("canvas")).to_be_visible()
    return figure


def range_s(page: Page) -> float | None:
    """Length of the range that the URL names; None: it names none from moment to moment."""
    asked = parse_qs(urlsplit(page.url).query)
    if not {"since", "until"} <= asked.keys():
        return None
    since, until = (
        page.evaluate("(text) => new Date(isNaN(text) ? text : Number(text) * 1000).getTime() / 1000", asked[name][0])
        for name in ("since", "until")
    )
    return float(until) - float(since)


def asks_for_all(answer: Response, path: str, first_at: str) -> bool:
    """Whether this was asked for the values since the first response time, which came less than an hour ago."""
    parts = urlsplit(answer.url)
    since = parse_qs(parts.query).get("since")
    if not parts.path.endswith(path) or since is None:
        return False
    return abs(datetime.fromisoformat(since[0]) - datetime.fromisoformat(first_at)) < timedelta(seconds=61)


def drag(page: Page, figure: Locator, begin: float, end: float) -> None:
    """Mark a part of a chart, from one share of its width to another."""
    box = figure.locator(CANVAS).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()


def shown_s(service: Service) -> float:
    """Of the time that a chart may show there are values since then."""
    first_at = service.ask("GET", "/applications/spiking/budget")["first_at"]
    return max((datetime.now(UTC) - datetime.fromisoformat(first_at)).total_seconds(), 60)


def test_numbers_at_an_axis_have_room_on_a_phone(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer", width=360)
    page.goto("/applications/spiking")
    chart(page, "CPU weight by VM")
    for most in (9, 262_144):
        margin, text = page.evaluate(MARGINS_PX, most)
        assert margin >= text + 15  # tick and gap


def test_a_chart_shows_a_value_alone_and_words_until_there_are_values_and_is_walked_from_end_to_end(
    visits: Visits, spike: Service
) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking")
    chart(page, TIMES)
    none, alone = (page.evaluate(PICTURE, {"values": [None, x, None], "range": [0, 180]}) for x in (None, 5))
    assert none != alone
    assert page.evaluate(WORDS, {"values": [1, 2, 3], "range": [0, 120]}) == ["nothing", 0]  # in other colours, too
    # The first step begins before the range.
    assert page.evaluate(WALK, {"values": [1, 2, 3], "range": [45, 120]}) == [3, 2, 1, 1, 2, 3]


def test_all_charts_of_an_application_are_drawn(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking?range=15min")
    for title in (TIMES, "Request rate", "CPU by tier", "CPU weight by VM"):
        chart(page, title)
    colours = chart(page, TIMES).locator("canvas").evaluate(COLOURS)
    assert colours > 10  # more than an empty frame has


def test_a_range_is_in_the_url_and_the_back_button_works(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking?range=15min")
    figure = chart(page, TIMES)
    first_at = spike.ask("GET", "/applications/spiking/budget")["first_at"]
    with (
        page.expect_response(lambda answer: asks_for_all(answer, "/history", first_at)),
        page.expect_response(lambda answer: asks_for_all(answer, "/tiers-history", first_at)),
        page.expect_response(lambda answer: asks_for_all(answer, "/story", first_at)),
    ):
        page.get_by_role("navigation", name="Time range").get_by_role("link", name="hour", exact=True).click()
    expect(page).to_have_url(re.compile("range=1h"))
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(drawn))")
    for _ in range(3):  # what is above may move the chart away meanwhile
        drag(page, figure, 0.75, 1.02)  # to the end, beyond which there is nothing
        with contextlib.suppress(AssertionError):
            expect(page).to_have_url(re.compile("since=.*until="), timeout=10_000)
            break
    length_s = range_s(page)
    assert length_s is not None
    assert 0.15 < length_s / shown_s(spike) < 0.35  # a quarter of it
    shared = visits.page(spike, "viewer")
    shared.goto(page.url)
    chart(shared, TIMES)
    assert range_s(shared) == length_s
    page.go_back()
    expect(page).to_have_url(re.compile("range=1h"))
    page.go_back()
    expect(page).to_have_url(re.compile("range=15min"))


def test_values_are_read_with_mouse_and_keyboard(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking?range=15min")
    figure = chart(page, TIMES)
    box = figure.locator(CANVAS).bounding_box()
    assert box is not None
    figure.locator(CANVAS).hover(position={"x": box["width"] - 2, "y": 50})
    expect(figure.locator(".u-legend")).to_contain_text(re.compile("SLA"))
    place = figure.get_by_role("group", name=re.compile("Arrow keys"))
    place.focus()
    told = place.locator("[aria-live]")
    for _ in range(5):  # the newest steps may have no response time yet
        page.keyboard.press("ArrowLeft")
        if re.search(r"p95 [\d.,]+ ms", told.inner_text()):
            break
    expect(told).to_contain_text(re.compile(r"p95 [\d.,]+ ms"))
    read = told.inner_text()
    intervals = page.locator("#in-range").inner_text()
    expect(page.locator("#in-range")).not_to_have_text(intervals)
    expect(told).to_have_text(read)  # new values do not take it away


def test_a_chart_is_saved_as_picture_and_as_table(visits: Visits, spike: Service, tmp_path: Path) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking?range=15min")
    figure = chart(page, TIMES)
    with page.expect_download() as saved:
        figure.get_by_role("button", name=re.compile("PNG")).click()
    assert saved.value.suggested_filename.endswith(".png")
    saved.value.save_as(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        figure.get_by_role("link", name=re.compile("CSV")).click()
    assert saved.value.suggested_filename.endswith(".csv")
    saved.value.save_as(tmp_path / "chart.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "chart.csv").read_text())))
    assert any(float(row["percentile_ms"]) > 0 for row in rows if row["percentile_ms"])
    assert sum(int(row["judged"]) for row in rows) > 0


def test_new_values_are_appended(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking?range=15min")
    chart(page, TIMES)
    told = page.locator("#in-range")
    expect(told).to_contain_text(re.compile(r"\d+ intervals"))
    before = told.inner_text()
    expect(told).not_to_have_text(before)


def test_a_report_is_printed(visits: Visits, spike: Service, tmp_path: Path) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/applications/spiking")
    page.get_by_role("link", name="SLA report").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("SLA report of spiking")
    expect(page.get_by_role("img", name=re.compile("Highest"))).to_be_visible()
    page.emulate_media(media="print")
    expect(page.get_by_role("banner")).not_to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_the_map_of_pcpus_is_walked_with_arrow_keys(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto(f"/hosts/{spike.host}")
    cpus = page.get_by_role("group", name=re.compile("pCPUs; arrow keys"))
    first, second = cpus.get_by_role("button").nth(0), cpus.get_by_role("button").nth(1)
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(second).to_be_focused()
    description = second.get_attribute("aria-label")
    assert description
    expect(page.locator("#pcpu-told")).to_contain_text(description[:10])


def test_what_if_is_always_labelled_as_estimated(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/what-if")
    page.get_by_label("Policy").select_option("priority")
    page.get_by_role("button", name="Estimate").click()
    expect(page.get_by_text("ESTIMATED, open loop")).to_be_visible()
    expect(page).to_have_url(re.compile("policy=priority"))
    expect(page.get_by_role("heading", name="spiking")).to_be_visible()
    expect(page.locator(".uplot canvas").first).to_be_visible()


def test_decisions_are_filtered_and_unfold_to_their_record(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/decisions")
    page.get_by_label("VM").fill("batch-1")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("vm=batch-1"))
    entries = page.locator("tr.entry")
    expect(entries.first).to_contain_text("batch-1")
    expect(entries.filter(has_text="spiking-web")).to_have_count(0)
    entries.first.locator("summary").first.click()
    expect(entries.first).to_contain_text("applied")
    expect(entries.first.get_by_role("table").or_(entries.first.locator("dl")).first).to_be_visible()
