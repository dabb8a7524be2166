"""Scripts and styles: kept for as long as they are the same, compressed, and nothing else is either."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

from manager.store.tokens import Role
from tests.web.desk import Desk
from webui.assets import FOLDER, load, mark_of

GZIP = {"Accept-Encoding": "br, gzip"}


def script(desk: Desk) -> str:
    return next(
        one["src"]
        for one in desk.browser(None).get("/sign-in").all("script")
        if one.attributes.get("src", "").endswith("app.js")
    )


def test_a_file_is_kept_and_compressed_for_who_can_read_that(desk: Desk) -> None:
    client = desk.browser(None).client
    packed, plain = client.get(script(desk), headers=GZIP), client.get(script(desk))
    assert (packed.status_code, packed.content_encoding, plain.content_encoding) == (200, "gzip", None)
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data)
    for response in (packed, plain):
        assert response.cache_control.immutable
        assert response.mimetype.endswith("/javascript")
        assert response.vary.as_set() >= {"accept-encoding"}
        assert "set-cookie" not in response.headers


def test_who_refuses_gzip_gets_none(desk: Desk) -> None:
    refused = desk.browser(None).client.get(script(desk), headers={"Accept-Encoding": "gzip;q=0"})
    assert refused.content_encoding is None


def test_a_file_of_another_version_is_answered_and_not_kept(desk: Desk) -> None:
    response = desk.browser(None).client.get("/static/0123456789abcdef/app.js")
    assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")


def test_what_is_no_file_of_ours_is_not_found(desk: Desk) -> None:
    folder = script(desk).removesuffix("app.js")
    for path in (f"{folder}nothing.js", f"{folder}../site.py", f"{folder}vendor", "/static/app.js"):
        assert desk.browser(None).client.get(path).status_code == 404, path


def test_all_files_have_another_address_when_one_changes(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.js").write_text("let a = 1;" * 100)
    (tmp_path / "below/b.css").write_text("b {}")
    before = load(tmp_path)
    assert sorted(before) == ["a.js", "below/b.css"]
    assert [before[name].packed is None for name in sorted(before)] == [False, True]
    (tmp_path / "below/b.css").write_text("c {}")
    assert mark_of(load(tmp_path)) != mark_of(before)


def test_pages_and_answers_hold_secrets_and_are_not_compressed(shop: Desk) -> None:
    client = shop.browser(Role.ADMIN).client
    for path in ("/", "/applications/shop", "/api/v1/fleet", "/api/v1/applications/shop/history"):
        response = client.get(path, headers=GZIP)
        assert (response.status_code, response.content_encoding) == (200, None), path
        assert response.headers["Cache-Control"] == "no-store"


def test_the_library_for_charts_comes_with_pages_that_draw_them(shop: Desk) -> None:
    browser = shop.browser()
    for path, drawing in (
        ("/", False),
        ("/decisions", False),
        ("/applications/shop", True),
        ("/hosts/kvm1", True),
        ("/what-if", True),
    ):
        sources = [one.attributes.get("src", "") for one in browser.get(path).all("script")]
        assert any("uPlot" in source for source in sources) == drawing, path


def test_a_page_holds_its_style_and_allows_only_that_one(desk: Desk) -> None:
    page = desk.browser(None).get("/sign-in")
    policy = page.response.headers["Content-Security-Policy"]
    for tag, file in (("style", "style.css"), ("script", "theme.js")):
        [held] = re.findall(f"<{tag}>(.*?)</{tag}>", page.source, re.DOTALL)
        assert held.encode() == (FOLDER / file).read_bytes()
        mark = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{tag}-src 'self' 'sha256-{mark}';" in policy
    assert "unsafe" not in policy
