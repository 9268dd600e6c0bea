"""A real Chromium, driven as a person would use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

from scripts.components import environment, find

WAIT_MILLISECONDS = 60_000
expect.set_options(timeout=WAIT_MILLISECONDS)


@contextmanager
def open_page(pictures: Path, *, width: int = 1200, height: int = 800) -> Iterator[Page]:
    """A page of a browser of its own; whatever the page complains about is a failure, and a picture is left of it."""
    complaints: list[str] = []
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    environ: dict[str, str | float | bool] = {**os.environ, **environment("chromium")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find("chromium")), env=environ, args=arguments)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, locale="en-US")
            page.set_default_timeout(WAIT_MILLISECONDS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complaints.append(message.text) if _counts(message) else None)
            try:
                yield page
            finally:
                page.screenshot(path=str(pictures / "last.png"))
        finally:
            browser.close()
    assert complaints == []


def _counts(message: ConsoleMessage) -> bool:
    """Who is asked to log in is told so by a 401, which browsers complain about."""
    return message.type == "error" and "401" not in message.text
