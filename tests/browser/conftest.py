"""A real browser in front of a real server.

Playwright's driver comes with its wheel, the browser from the system: `BROWSER_PATH`, or a Chromium
or Chrome on the PATH. Without one these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
POLICY = "default-src 'self'"

Visit = Callable[[Callable[[BrowserContext], Any]], Any]


def find_browser() -> str:
    found = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} on the PATH, no BROWSER_PATH")
    return found


@pytest.fixture(scope="session")
def playing() -> Iterator[tuple[ThreadPoolExecutor, Browser]]:
    """Keep one browser in a thread of its own.

    Playwright runs an event loop in its thread, where Django would refuse to query.
    """
    path = find_browser()
    with ThreadPoolExecutor(1, thread_name_prefix="browser") as thread:
        player = thread.submit(lambda: sync_playwright().start()).result()
        try:
            browser = thread.submit(
                # Root can't have the sandbox; nothing but this suite's server is visited.
                lambda: player.chromium.launch(executable_path=path, args=["--no-sandbox"])
            ).result()
            yield thread, browser
            thread.submit(browser.close).result()
        finally:
            thread.submit(player.stop).result()


@pytest.fixture
def visit(live_server: Any, playing: tuple[ThreadPoolExecutor, Browser]) -> Iterator[Visit]:
    """Run a function with a browser's context in which a superuser is logged in.

    Every answer gets a policy that forbids inline scripts and styles; what a page logs as an error,
    a breach of the policy among it, fails the test.
    """
    thread, browser = playing
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    errors: list[str] = []

    def open_context() -> BrowserContext:
        context = browser.new_context(base_url=live_server.url)
        context.set_default_timeout(20_000)
        session = {"name": "sessionid", "value": client.cookies["sessionid"].value}
        context.add_cookies([{**session, "url": live_server.url}])
        context.route("**/*", with_policy)
        context.on("page", lambda page: listen(page, errors))
        return context

    context = thread.submit(open_context).result()
    try:
        yield lambda script: thread.submit(script, context).result()
    finally:
        thread.submit(context.close).result()
    assert not errors


def with_policy(route: Route) -> None:
    answer = route.fetch(max_redirects=0)
    headers = {**answer.headers, "content-security-policy": POLICY}
    route.fulfill(response=answer, headers=headers)


def listen(page: Page, errors: list[str]) -> None:
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "console",
        lambda message: errors.append(message.text) if message.type == "error" else None,
    )
