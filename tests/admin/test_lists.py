"""The lists: a fixed number of bounded queries, filters, search, and nothing that leaks."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable.admin.paginator import BoundedPaginator
from django_durable.models import Attempt, DeadLetter, Job, Worker
from tests.admin.world import (
    HOUR,
    SECRET,
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
from tests.by_hand import beat, silence

pytestmark = pytest.mark.django_db


def listed(client, query="", model="job"):
    """Return the rows of a list page, in its order."""
    answer = client.get(url("changelist", model=model) + query)
    assert answer.status_code == 200, answer
    return list(answer.context["cl"].result_list)


def queries(client, query="", model="job"):
    with CaptureQueriesContext(connection) as captured:
        client.get(url("changelist", model=model) + query)
    return [query["sql"] for query in captured]


def make_dead(number):
    charge.enqueue_many([((i,), {}) for i in range(number)])
    by = hand()
    for claim in by.claim(number):
        by.kill(claim, ValueError("boom"))


QUERIES = [
    "",
    "?p=2",
    "?q=shown.",
    "?q=01900000-0000-7000-8000-000000000000",
    "?status__exact=DEAD",
    "?status__exact=READY",
    "?status__exact=WAITING",
    "?name=shown.charge",
    "?queue_name=shown",
    "?since=1h",
]


@pytest.mark.parametrize(
    ("model", "query"),
    [
        *[("job", query) for query in QUERIES],
        *[("deadletter", query) for query in ("", "?p=2", "?q=shown.", "?replayed=no")],
        ("attempt", ""),
        ("attempt", "?q=Val"),
    ],
)
def test_a_list_costs_the_same_queries_whatever_its_size(root, model, query):
    make_dead(60)
    queries(root, query, model)
    few = queries(root, query, model)
    make_dead(240)
    many = queries(root, query, model)
    assert len(many) == len(few) <= 7
    for sql in many:
        assert "count(" not in sql.lower() or "limit" in sql.lower()


def test_the_list_of_workers_costs_the_same_for_many(root):
    beat()
    few = queries(root, model="worker")
    for _ in range(20):
        beat()
    assert len(queries(root, model="worker")) == len(few)


def test_a_list_reads_no_payload(root):
    charge.enqueue(SECRET)
    (rows,) = [sql for sql in queries(root) if '"max_attempts"' in sql]
    for column in ("args", "kwargs", "return_value", "metadata", "options", "progress"):
        assert f'"{column}"' not in rows
    make_dead(1)
    (rows,) = [sql for sql in queries(root, model="deadletter") if '"replayed_by"' in sql]
    for column in ("args", "kwargs", "return_value", "traceback"):
        assert f'"{column}"' not in rows


def test_more_rows_than_are_counted_are_about_so_many(root, monkeypatch):
    monkeypatch.setattr(BoundedPaginator, "cap", 100)
    make_dead(130)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_job")
    answer = root.get(url("changelist"))
    page = answer.content.decode()
    assert re.search(r"about 1[0-9][0-9] jobs", page)
    paginator = answer.context["cl"].paginator
    assert paginator.is_estimate
    assert paginator.num_pages == 2
    # The action bar can't offer all of an unknown number.
    assert "question hidden" not in page or paginator.count <= 500
    assert len(listed(root, "?p=2")) == 50
    assert root.get(url("changelist") + "?p=3").status_code == 302
    assert "about" in root.get(url("changelist") + "?status__exact=DEAD").content.decode()


def test_a_count_that_stopped_with_no_better_estimate_says_more_than(root, monkeypatch):
    monkeypatch.setattr(BoundedPaginator, "cap", 10)
    charge.enqueue_many([((i,), {}) for i in range(20)])
    # Nothing is known of this table yet: the planner's guess for a rare name is a row or so.
    for query in ("?name=shown.charge", f"?q={charge.name}"):
        page = root.get(url("changelist") + query).content.decode()
        assert "more than 10 jobs" in page
        assert "about" not in page
    assert "more than 10 results" in page


def test_an_estimate_is_never_below_what_was_counted(monkeypatch):
    monkeypatch.setattr(BoundedPaginator, "cap", 10)
    charge.enqueue_many([((i,), {}) for i in range(20)])
    # Nothing is known of this table yet: the planner's guess for a rare name is a row or so.
    rare = Job.objects.filter(name=charge.name, priority=0).order_by("pk")
    paginator = BoundedPaginator(rare, 5)
    assert paginator.count >= 11
    assert BoundedPaginator(rare.none(), 5).count == 0
    assert BoundedPaginator([1, 2, 3], 2).num_pages == 2


def test_the_newest_jobs_come_first_and_no_address_sorts_otherwise(root):
    jobs = [charge.using(priority=priority).enqueue() for priority in (1, 3, 2)]
    newest_first = [job.pk for job in reversed(jobs)]
    for query in ("", "?o=1", "?o=-2.3", "?o=nonsense"):
        assert [job.pk for job in listed(root, query)] == newest_first


def test_jobs_are_found_by_id_key_and_beginning_of_their_name(root):
    keyed = charge.using(idempotency_key="order-7").enqueue()
    other = hostile.enqueue()
    assert listed(root, f"?q={keyed.pk}") == [keyed]
    assert listed(root, f"?q={keyed.pk.hex.upper()}") == [keyed]
    assert listed(root, "?q=order-7") == [keyed]
    assert listed(root, "?q=order") == []
    assert listed(root, "?q=shown.charge") == [keyed]
    assert listed(root, "?q=shown.") == [other, keyed]
    assert listed(root, "?q=harge") == []
    assert listed(root, "?q=%25") == []
    by_key = charge.using(idempotency_key=str(other.pk)).enqueue()
    assert listed(root, f"?q={other.pk}") == [by_key, other]


def test_jobs_are_filtered_by_status(root):
    made = {
        "SUCCESSFUL": successful(),
        "DEAD": dead(),
        "RUNNING": running(),
        "CANCELLED": charge.enqueue(),
    }
    made["CANCELLED"].cancel()
    made["READY"] = delayed()
    for status, job in made.items():
        assert listed(root, f"?status__exact={status}") == [job]
    keyed = charge.using(concurrency_key="k").enqueue()
    assert listed(root, "?status__exact=READY") == [keyed, made["READY"]]
    assert listed(root, "?status__exact=WAITING") == []


def test_parked_jobs_are_found_with_and_without_a_wake_up(root):
    charge.enqueue()
    by = hand()
    first = by.take()
    parked = by.park(first, wake_at=timezone.now() + HOUR)
    charge.enqueue()
    second = by.take()
    waits = by.park(second, awaited=[parked.pk])
    assert listed(root, "?status__exact=WAITING") == [waits, parked]


def test_jobs_are_filtered_by_type_and_queue(root):
    one, other = charge.using(queue_name="fast").enqueue(), hostile.enqueue()
    assert listed(root, "?name=shown.charge") == [one]
    assert listed(root, "?queue_name=fast") == [one]
    assert listed(root, "?queue_name=default") == [other]
    page = root.get(url("changelist")).content.decode()
    for offered in ("?name=shown.charge", "?queue_name=fast", "?queue_name=shown"):
        assert offered in page


def test_the_filter_offers_types_that_no_code_here_knows(root):
    charge.enqueue()
    Job.objects.update(name="gone.job", queue_name="gone")
    page = root.get(url("changelist")).content.decode()
    assert "?name=gone.job" in page
    assert "?queue_name=gone" in page


def test_jobs_are_filtered_by_the_time_of_their_end_or_else_of_their_enqueueing(root):
    ended, old = successful(), charge.enqueue()
    Job.objects.update(enqueued_at=old.enqueued_at - timedelta(days=3))
    fresh = charge.enqueue()
    assert listed(root, "?since=1h") == [fresh, ended]
    assert listed(root, "?since=4d") == [fresh, old, ended]
    assert listed(root, "?since=nonsense") == []


@pytest.mark.parametrize("query", ["?q=%00", "?name=a%00b", "?since=%00", "?id__exact=x"])
def test_a_wild_address_leads_back_to_the_list(root, query):
    charge.enqueue()
    answer = root.get(url("changelist") + query)
    assert answer.status_code == 302
    assert answer.url.endswith("?e=1")


def test_what_retention_has_given_up_is_not_listed(root):
    job = dead()
    assert listed(root) == [job]
    assert listed(root, model="deadletter") == [job.dead_letter]
    Job.objects.update(kept_until=job.finished_at - HOUR)
    assert listed(root) == []
    assert listed(root, model="deadletter") == []
    assert root.get(url("change", job.pk)).status_code == 302


def test_status_is_told_in_words(root):
    delayed()
    assert "Ready (scheduled)" in root.get(url("changelist")).content.decode()
    charge.enqueue()
    by = hand()
    by.fail(by.take(), ValueError("again"), delay=HOUR)
    assert "Ready (retrying)" in root.get(url("changelist")).content.decode()
    running().cancel()
    assert "Running (asked to stop)" in root.get(url("changelist")).content.decode()


def test_dead_letters_are_filtered_and_found(root):
    first, second = dead(), dead(call=hostile)
    first.dead_letter.replay()
    letters = {job: DeadLetter.objects.get(job=job) for job in (first, second)}
    assert listed(root, "?replayed=no", "deadletter") == [letters[second]]
    assert listed(root, "?replayed=yes", "deadletter") == [letters[first]]
    assert listed(root, "?name=shown.charge", "deadletter") == [letters[first]]
    assert listed(root, "?reason__exact=permanent&since=1h", "deadletter") == [
        letters[second],
        letters[first],
    ]
    assert listed(root, f"?q={first.pk}", "deadletter") == [letters[first]]
    assert listed(root, "?q=shown.charge", "deadletter") == [letters[first]]
    assert len(listed(root, "?q=tests.admin.world.Declined", "deadletter")) == 2
    assert len(listed(root, "?q=tests.admin.world.Declined", "attempt")) == 2
    assert listed(root, f"?q={first.pk}", "attempt") == [Attempt.objects.get(job=first)]


def test_children_are_listed_by_their_parent(root):
    parent, child = family()
    assert listed(root, f"?parent={parent.pk}") == [child]


def test_a_worker_that_is_silent_is_dead(root):
    silence(beat(name="alive"), timedelta(0))
    silence(beat(name="silent"), timedelta(minutes=5))
    beat(name="stopping", draining=True)
    states = {}
    for worker in listed(root, model="worker"):
        page = root.get(url("change", worker.pk, model="worker")).content.decode()
        states[worker.name] = re.search(r"durable-status [\w-]+\">(\w+)<", page)[1]
    assert states == {"alive": "running", "silent": "dead", "stopping": "draining"}


def test_the_list_of_workers_tells_used_slots_and_capabilities(root):
    running()
    beat(name="hand", slots=4, capabilities=["gpu", "large"])
    beat(name="idle", slots=10)
    page = root.get(url("changelist", model="worker")).content.decode()
    assert re.findall(r'field-slots_used">(?:<a [^>]*>)?([^<]*)<', page) == ["1 of 4", "0 of 10"]
    assert re.findall(r'field-capability_names">([^<]*)<', page) == ["gpu, large", "-"]


def test_the_list_of_jobs_tells_of_what_error_the_latest_attempt_ended(root):
    make_dead(2)
    charge.enqueue()
    page = root.get(url("changelist")).content.decode()
    assert page.count("ValueError") == 2


def test_the_list_of_jobs_tells_when_each_is_due_or_has_ended(root):
    make_dead(1)
    due = charge.using(run_after=timedelta(hours=1)).enqueue()
    page = root.get(url("changelist")).content.decode()
    moments = re.findall(r'field-due_or_ended[^"]*">(\w+)<br><time datetime="([^"]*)"', page)
    assert moments == [
        ("due", due.due_at.isoformat()),
        ("ended", Job.objects.dead().get().finished_at.isoformat()),
    ]


def test_the_jobs_of_a_worker_are_one_link_away(root):
    job = running()
    worker = beat(name="hand")
    page = root.get(url("changelist", model="worker")).content.decode()
    link = re.search(r'href="([^"]*worker__exact[^"]*)"', page)[1].replace("&amp;", "&")
    assert list(root.get(link).context["cl"].result_list) == [job]
    assert Worker.objects.get() == worker


SECRETIVE = [
    ("job", "args__contains"),
    ("job", "kwargs__contains"),
    ("job", "return_value__contains"),
    ("job", "return_value__isnull"),
    ("job", "attempts__message__contains"),
    ("job", "dead_letter__message__contains"),
    ("job", "children__args__contains"),
    ("job", "parent__args__contains"),
    ("deadletter", "message__contains"),
    ("deadletter", "traceback__contains"),
    ("deadletter", "job__args__contains"),
    ("deadletter", "replayed_as__args__contains"),
    ("attempt", "message__startswith"),
    ("attempt", "traceback__contains"),
    ("attempt", "job__args__contains"),
    ("schedule", "args__contains"),
    ("schedule", "args__gt"),
    ("schedule", "kwargs__regex"),
    ("schedule", "kwargs__startswith"),
    ("schedule", "kwargs"),
    ("schedule", "broken__contains"),
    ("schedule", "declaration__contains"),
    ("schedule", "jobs__args__contains"),
    ("job", "schedule__kwargs__contains"),
    ("job", "steps__value__contains"),
    ("job", "signals__payload__contains"),
]


@pytest.mark.parametrize(("model", "lookup"), SECRETIVE)
def test_nobody_can_filter_by_what_he_may_not_see(staff, model, lookup):
    dead(SECRET, message=SECRET)
    client = staff("view_job", "view_deadletter", "view_attempt", "view_schedule")
    answer = client.get(url("changelist", model=model), {lookup: SECRET})
    assert answer.status_code == 400


def test_no_search_answers_guesses_about_what_he_may_not_see(staff):
    dead(SECRET, message=SECRET)
    client = staff("view_job", "view_deadletter", "view_attempt")
    for model in ("job", "deadletter", "attempt"):
        assert listed(client, f"?q={SECRET}", model) == []
