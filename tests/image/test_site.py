"""The site of docs/ in Debian's chromium: a phone, the dark, and the first hit for what users ask."""

import functools
import http.server
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.browser import Browser, browsing
from tests.image.test_pages import _LIGHT, _WIDER, DESK, PHONE
from tests.test_site import build
from tests.waiting import allowed

#: What users type, and the page that has it.
QUESTIONS = {
    "why is my GPU not offered": "troubleshooting",
    "group is not viable": "troubleshooting",
    "memlock": "troubleshooting",
    "restricted": "restricted",
    "vGPU": "vgpus",
    "stop a VM": "suspend",
    "why is my VM pending": "choosing",
    "move from KubeVirt": "moving",
    "suspend": "suspend",
    "own machine": "own-machine",
    "NVLink": "fabric",
    "helm": "install",
    "exit code": "troubleshooting",
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site's URL."""
    folder = build(tmp_path_factory.mktemp("site") / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.mark.parametrize("page", ["index", "troubleshooting", "manifest", "vgpus"])
def test_a_page_is_for_a_desk_a_phone_and_the_dark(browser: Browser, site: str, page: str) -> None:
    browser.requests.clear()
    for width in (PHONE, DESK):
        for dark in (True, False):
            browser.open(f"{site}/{page}.html", width=width, dark=dark)
            assert not browser.value(_WIDER)
            assert (browser.value(_LIGHT) < 3 * 128) == dark
    assert [url for url in browser.requests if not url.startswith((site, "data:"))] == []
    assert browser.troubles == []


@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_the_first_hit_is_the_page_that_answers(browser: Browser, site: str, question: str, page: str) -> None:
    browser.open(f"{site}/index.html?q={question.replace(' ', '%20')}")
    first = "document.querySelector('.md-search-result__item a')?.pathname"
    until = time.monotonic() + allowed(20)
    while not (hit := browser.value(first)):
        assert time.monotonic() < until, "nothing was found"
        time.sleep(0.05)
    assert hit == f"/{page}.html"
