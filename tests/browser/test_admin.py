"""The admin in a browser, under a policy that forbids inline scripts and styles."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.sync_api import BrowserContext

from django_durable.models import DeadLetter, Job
from tests.admin.world import SCRIPT, charge, dead, hostile, url
from tests.by_hand import beat

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_dead_job_replayed_from_two_tabs_makes_one_new_job(visit):
    job = dead(message="card declined")

    def replay(context: BrowserContext) -> list[str]:
        tabs = [context.new_page() for _ in range(2)]
        for tab in tabs:
            tab.goto(url("change", job.pk))
            tab.get_by_text("card declined").first.wait_for()
            tab.get_by_role("link", name="Replay", exact=True).click()
            tab.get_by_role("heading", name="Replay dead jobs").wait_for()
        for tab in tabs:
            tab.get_by_role("button", name="Yes, replay").click()
            tab.wait_for_url(f"**{url('change', job.pk)}")
        return [tab.locator(".messagelist").inner_text() for tab in tabs]

    first, second = visit(replay)
    letter = DeadLetter.objects.get()
    assert str(letter.replayed_as_id) in first
    assert "had been replayed already" in second
    assert Job.objects.count() == 2


def test_jobs_are_chosen_in_the_list_and_cancelled_after_a_question(visit):
    jobs = [charge.enqueue(number) for number in range(3)]

    def cancel(context: BrowserContext) -> str:
        page = context.new_page()
        page.goto(url("changelist"))
        for job in jobs[:2]:
            page.locator(f'input[name="_selected_action"][value="{job.pk}"]').check()
        page.locator('select[name="action"]').select_option("cancel_selected")
        page.locator('button[name="index"]').click()
        page.get_by_label("Reason").fill("wrong price")
        page.get_by_role("button", name="Yes, cancel").click()
        page.wait_for_url(f"**{url('changelist')}")
        return page.locator(".messagelist").inner_text()

    assert "2 jobs were cancelled." in visit(cancel)
    states = [Job.objects.get(pk=job.pk) for job in jobs]
    assert [job.status for job in states] == ["CANCELLED", "CANCELLED", "READY"]
    assert states[0].cancel_reason == "wrong price"


def test_whoever_says_no_is_taken_back_and_nothing_happens(visit):
    job = charge.enqueue()

    def refuse(context: BrowserContext) -> None:
        page = context.new_page()
        page.goto(url("cancel", job.pk))
        page.get_by_role("link", name="No, take me back").click()
        page.wait_for_url(f"**{url('change', job.pk)}")

    visit(refuse)
    assert Job.objects.get().status == "READY"


def test_no_text_of_a_job_runs_as_a_script_and_no_page_breaks_the_policy(visit):
    job = dead(SCRIPT, key=SCRIPT, call=hostile, message=SCRIPT)
    letter = job.dead_letter
    attempt = job.attempts.get()
    addresses = [
        *[url("changelist", model=model) for model in ("job", "deadletter", "attempt", "worker")],
        url("change", job.pk),
        url("replay", job.pk),
        url("delete", job.pk),
        url("history", job.pk),
        url("payload", job.pk, "args"),
        url("change", letter.pk, model="deadletter"),
        url("change", attempt.pk, model="attempt"),
    ]

    def read(context: BrowserContext) -> list[str]:
        page = context.new_page()
        texts = []
        for address in addresses:
            assert page.goto(address).status == 200
            texts.append(page.locator("body").inner_text())
        return texts

    texts = visit(read)
    assert SCRIPT in texts[0]
    assert SCRIPT in texts[4]


@pytest.mark.parametrize("model", ["job", "deadletter", "schedule", "worker"])
def test_a_list_fits_a_small_desktop_beside_its_filters(visit, model):
    dead(message="card declined").dead_letter.replay()
    charge.using(run_after=timedelta(hours=1)).enqueue()
    charge.schedule("nightly", every=timedelta(minutes=15), timezone="America/New_York")
    beat(name="web-1.example.com:12345", capabilities=["gpu", "large"], queues=["mail", "reports"])

    def widths(context: BrowserContext) -> tuple[int, int]:
        page = context.new_page()
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(url("changelist", model=model))
        assert page.locator("#result_list tbody tr").count() > 0
        return page.locator("#changelist-form .results").evaluate(
            "results => [results.scrollWidth, results.clientWidth]"
        )

    content, room = visit(widths)
    assert content <= room


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_narrow_screen(visit, scheme):
    job = dead("x" * 300, message="m" * 300)

    def widths(context: BrowserContext) -> tuple[int, int]:
        page = context.new_page()
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 320, "height": 640})
        page.goto(url("change", job.pk))
        return page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")

    content, window = visit(widths)
    assert content <= window
