"""The page of a job and its like: all there is, escaped, and hidden from whom it must be."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable.admin import job_displays, job_page
from django_durable.models import Job
from tests.admin.world import (
    ESCAPED,
    SCRIPT,
    SECRET,
    act,
    charge,
    dead,
    delayed,
    family,
    hand,
    hostile,
    running,
    successful,
    url,
)
from tests.by_hand import bear, beat

pytestmark = pytest.mark.django_db


def page_of(client, row, model="job"):
    answer = client.get(url("change", row.pk, model=model))
    assert answer.status_code == 200
    return answer.content.decode()


def raised(text):
    """Return an error that has a traceback."""
    with pytest.raises(ValueError, match=text) as caught:
        raise ValueError(text)
    return caught.value


def test_a_successful_job_shows_what_it_took_and_gave(root):
    charge.using(metadata={"tenant": "seven"}, idempotency_key="order-7").enqueue(
        41, currency="EUR"
    )
    by = hand()
    job = by.succeed(by.take(), {"receipt": [1, (2, 3)]})
    page = page_of(root, job)
    for text in (
        str(job.pk),
        "shown.charge",
        "Successful",
        "41",
        "&quot;currency&quot;: &quot;EUR&quot;",
        "&quot;receipt&quot;: [",
        "&quot;tenant&quot;: &quot;seven&quot;",
        "order-7",
        "1 of 3",
    ):
        assert text in page, text


def test_none_is_shown_as_a_result_of_successful_jobs_alone(root):
    assert ">null<" in page_of(root, successful(None))
    assert ">null<" not in page_of(root, dead())


def test_each_attempt_shows_its_error_and_traceback(root):
    charge.enqueue()
    by = hand()
    for number in (1, 2, 3):
        job = by.fail(by.take(), raised(f"failure number {number}"), retryable=number < 3)
    page = page_of(root, job)
    # The record of the death comes first, then the facts, then the attempts, latest first.
    sections = ["durable-dead-letter", ">Payload<", *(f"durable-attempt-{n}" for n in (3, 2, 1))]
    places = [page.index(section) for section in sections]
    assert places == sorted(places)
    for number in (1, 2, 3):
        # Once as the message, once at the end of the traceback; the last in the dead letter too.
        assert page.count(f"failure number {number}") >= 2
    assert "Traceback (most recent call last)" in page
    assert "exhausted" in page


def test_only_the_latest_attempts_are_on_the_page(root, monkeypatch):
    monkeypatch.setattr(job_page, "MAX_ATTEMPTS", 2)
    charge.enqueue()
    by = hand()
    for number in range(3):
        job = by.fail(by.take(), ValueError(f"failure number {number}"), retryable=number < 2)
    page = page_of(root, job)
    assert "failure number 0" not in page
    assert f"{url('changelist', model='attempt')}?job={job.pk}" in page


def test_long_error_texts_are_cut_with_a_way_to_the_rest(root, monkeypatch):
    monkeypatch.setattr(job_page, "MAX_MESSAGE", 10)
    job = dead(message="0123456789-and-the-rest")
    attempt = job.attempts.get()
    page = page_of(root, job)
    assert "The texts are cut here" in page
    assert url("change", attempt.pk, model="attempt") in page
    assert "0123456789-and-the-rest" in page_of(root, attempt, "attempt")


def test_a_dead_job_and_its_replay_link_to_each_other(root):
    job = dead()
    new = job.dead_letter.replay()
    job = Job.objects.get(pk=job.pk)
    assert url("change", new.pk) in page_of(root, job)
    assert url("change", job.pk) in page_of(root, new)
    letter = page_of(root, job.dead_letter, "deadletter")
    assert url("change", new.pk) in letter
    assert url("change", job.pk) in letter


def test_a_fork_links_to_what_it_is_like(root):
    job = dead()
    assert "Forked from" not in page_of(root, job)
    page = page_of(root, job.fork())
    assert "Forked from" in page
    assert url("change", job.pk) in page


def test_a_tree_is_linked_up_and_down(root):
    parent, child = family()
    assert url("change", child.pk) in page_of(root, parent)
    page = page_of(root, child)
    assert page.count(url("change", parent.pk)) == 2


def test_only_the_first_children_are_on_the_page(root, monkeypatch):
    monkeypatch.setattr(job_page, "MAX_CHILDREN", 2)
    charge.enqueue()
    claim = hand().take()
    children = [bear(claim, charge) for _ in range(3)]
    page = page_of(root, Job.objects.get(pk=claim.id))
    assert [url("change", child) in page for child in children] == [True, True, False]
    assert f"?parent={claim.id}" in page


def test_the_timeline_tells_what_happened_oldest_first(root):
    page = page_of(root, dead(message="declined twice"))
    timeline = page[page.index("durable-timeline") :]
    moments = [
        "enqueued",
        "attempt 1 taken by worker hand",
        "DeclinedError: declined twice",
        "dead",
    ]
    places = [timeline.index(text) for text in moments]
    assert places == sorted(places)


def test_of_a_long_timeline_the_latest_moments_are_shown(root, monkeypatch):
    monkeypatch.setattr(job_page, "MAX_MOMENTS", 2)
    page = page_of(root, dead())
    timeline = page[page.index("durable-timeline") :]
    assert "Only the latest 2 are shown" in timeline
    assert ("taken by" in timeline, "failed" in timeline) == (False, True)


def test_a_waiting_job_says_what_it_waits_for(root):
    assert "no live worker serves it" in page_of(root, charge.enqueue())
    assert "scheduled until" in page_of(root, delayed())
    assert "Blocked on" not in page_of(root, running())


def test_a_running_job_shows_its_worker_and_lease(root):
    job = running()
    worker = beat(name="hand")
    page = page_of(root, job)
    assert url("change", worker.pk, model="worker") in page
    assert job.lease_until.isoformat() in page
    worker.delete()
    assert url("change", worker.pk, model="worker") not in page_of(root, job)


def test_progress_and_cancellation_are_shown_when_there_are_any(root):
    job = running()
    assert "Cancellation" not in page_of(root, job)
    job.cancel("changed my mind")
    Job.objects.filter(pk=job.pk).update(
        progress={"done": 3, "total": 10, "message": f"at {SCRIPT}"}
    )
    page = page_of(root, job)
    assert "changed my mind" in page
    assert f"3 of 10: at {ESCAPED}" in page


def test_a_page_costs_the_same_queries_however_much_belongs_to_the_job(root):
    def count(job):
        page_of(root, job)
        with CaptureQueriesContext(connection) as captured:
            page_of(root, job)
        return len(captured)

    charge.enqueue()
    by = hand()
    claim = by.take()
    bear(claim, charge)
    few = count(Job.objects.get(pk=claim.id))
    for _ in range(30):
        bear(claim, charge)
    assert count(Job.objects.get(pk=claim.id)) == few
    assert few < 20


# --- Escaping -------------------------------------------------------------------------------


def hostile_rows():
    """Put a script into every text that a job, its errors and a worker can have."""
    hostile.using(
        idempotency_key=SCRIPT,
        concurrency_key=SCRIPT,
        metadata={SCRIPT: SCRIPT},
        queue_name=SCRIPT,
        requires=SCRIPT,
    ).enqueue(SCRIPT, key={SCRIPT: [SCRIPT, (SCRIPT,)]})
    Job.objects.update(requires=None, progress={"done": SCRIPT, "message": SCRIPT})
    by = hand()
    job = by.kill(by.take(), ValueError(SCRIPT))
    Job.objects.filter(pk=job.pk).update(
        worker=SCRIPT, cancel_requested_at=job.finished_at, cancel_reason=SCRIPT, requires=SCRIPT
    )
    for rows in (job.attempts.all(), type(job.dead_letter).objects.all()):
        rows.update(error_class=SCRIPT, message=SCRIPT, traceback=SCRIPT)
    job.attempts.update(worker=SCRIPT)
    worker = beat(
        SCRIPT,
        name=SCRIPT,
        hostname=SCRIPT,
        queues=[SCRIPT],
        excluded_queues=[SCRIPT],
        capabilities=[SCRIPT],
    )
    return Job.objects.get(pk=job.pk), worker


def test_every_text_of_a_job_is_escaped_on_every_page(root):
    job, worker = hostile_rows()
    letter, attempt = job.dead_letter, job.attempts.get()
    successful(SCRIPT)
    pages = [
        *[url("changelist", model=model) for model in ("job", "deadletter", "attempt", "worker")],
        url("changelist") + f"?q={SCRIPT}&name={SCRIPT}&queue_name={SCRIPT}",
        url("change", job.pk),
        url("change", Job.objects.get(status="SUCCESSFUL").pk),
        url("change", letter.pk, model="deadletter"),
        url("change", attempt.pk, model="attempt"),
        url("change", worker.pk, model="worker"),
        url("replay", job.pk),
        url("cancel", job.pk),
        url("delete", job.pk),
        url("replay", letter.pk, model="deadletter"),
    ]
    for address in pages:
        answer = root.get(address)
        assert answer.status_code == 200
        page = answer.content.decode()
        assert SCRIPT not in page, address
    assert ESCAPED in root.get(pages[0]).content.decode()
    for action in ("cancel_selected", "replay_selected", "delete_selected"):
        assert SCRIPT not in act(root, action, job).content.decode()
    act(root, "replay_selected", job, confirm="yes")
    assert SCRIPT not in root.get(url("changelist")).content.decode()
    assert SCRIPT not in root.get(url("history", job.pk)).content.decode()


def test_pages_have_no_inline_script_or_style(root):
    job, worker = hostile_rows()
    for address in (
        url("changelist"),
        url("change", job.pk),
        url("replay", job.pk),
        url("cancel", job.pk),
        url("change", worker.pk, model="worker"),
    ):
        page = root.get(address).content.decode()
        for script in re.findall(r"<script[^>]*>", page):
            assert "src=" in script
        assert not re.search(r"<[a-z][^>]*\s(style|on[a-z]+)\s*=", page)
        assert "<style" not in page
        assert "javascript:" not in page


# --- What can't be decoded ------------------------------------------------------------------


@pytest.mark.parametrize("text", ["no json", '{"$": ["no-such-tag"]}', '["unfinished'])
def test_a_payload_that_cannot_be_decoded_breaks_no_page(root, text):
    job = successful()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durable_job SET args = %s, kwargs = %s, return_value = %s", [text] * 3
        )
    page = page_of(root, job)
    assert page.count("cannot be decoded") == 3
    assert root.get(url("changelist")).status_code == 200
    for field in ("args", "kwargs", "result"):
        full = root.get(url("payload", job.pk, field)).content.decode()
        assert full.startswith("cannot be decoded")
        assert full.endswith(text)
    assert act(root, "delete_selected", job, confirm="yes").status_code == 302
    assert not Job.all_objects.exists()


# --- Payloads, cut and hidden ---------------------------------------------------------------


def test_a_long_payload_is_cut_and_its_full_text_a_link_away(root, monkeypatch):
    monkeypatch.setattr(job_displays, "MAX_SHOWN", 100)
    job = charge.enqueue("x" * 500 + SCRIPT + "the end")
    page = page_of(root, job)
    assert "the end" not in page
    address = url("payload", job.pk, "args")
    assert address in page
    full = root.get(address)
    assert full["Content-Type"] == "text/plain; charset=utf-8"
    assert full["X-Content-Type-Options"] == "nosniff"
    assert full.content.decode() == f'[\n  "{"x" * 500}{SCRIPT}the end"\n]'
    assert root.get(url("payload", job.pk, "nonsense")).status_code == 404


def test_without_view_payload_nothing_of_it_is_anywhere(staff):
    job = dead(SECRET, key=SECRET, message=SECRET)
    done = successful(SECRET)
    letter, attempt = job.dead_letter, job.attempts.get()
    everything_else = (
        "view_job",
        "view_deadletter",
        "view_attempt",
        "view_worker",
        "cancel_job",
        "retry_job",
        "replay_job",
        "delete_job",
        "signal_job",
        "fork_job",
        "enqueue_job",
        "edit_payload",
    )
    client = staff(*everything_else)
    pages = [
        url("changelist"),
        url("changelist", model="deadletter"),
        url("changelist", model="attempt"),
        url("change", job.pk),
        url("change", done.pk),
        url("change", letter.pk, model="deadletter"),
        url("change", attempt.pk, model="attempt"),
        url("history", job.pk),
        url("delete", job.pk),
        *[
            url(operation, job.pk)
            for operation in ("cancel", "run_now", "replay", "fork", "enqueue")
        ],
        url("replay", letter.pk, model="deadletter"),
    ]
    privileged = staff(*everything_else, "view_payload")
    for address in pages:
        answer = client.get(address)
        assert answer.status_code == 200
        assert SECRET not in answer.content.decode(), address
    for address in pages[1:7]:
        assert (
            "hidden: needs permission durable.view_payload" in client.get(address).content.decode()
        ), address
        assert SECRET in privileged.get(address).content.decode(), address
    for field in ("args", "kwargs", "result"):
        assert client.get(url("payload", job.pk, field)).status_code == 403
        assert privileged.get(url("payload", job.pk, field)).status_code == 200
    replayed = act(client, "replay_selected", job, confirm="yes")
    assert replayed.status_code == 302
    assert SECRET not in client.get(url("changelist")).content.decode()
    for address in pages:
        assert SECRET not in client.get(address).content.decode(), address


def test_the_full_text_of_a_payload_needs_the_right_to_view_jobs_too(staff):
    job = dead(SECRET)
    client = staff("view_payload")
    assert client.get(url("payload", job.pk, "args")).status_code == 403


def test_headings_tables_and_sections_are_marked_up_for_everybody(root):
    parent, _child = family()
    page = page_of(root, parent)
    assert "<caption" in page
    assert 'scope="col"' in page
    assert 'scope="row"' in page
    assert re.search(r'aria-labelledby="durable-attempts"', page)
    confirmation = root.get(url("cancel", parent.pk)).content.decode()
    assert "<caption>1 job</caption>" in confirmation
    assert '<label for="id_reason">' in confirmation
