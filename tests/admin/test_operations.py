"""Cancel, run now and replay, of many and of one: confirmed, recorded and told."""

import threading

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.db import connection, connections
from django.test import Client

from django_durable import operations
from django_durable.admin import JobAdmin
from django_durable.models import DeadLetter, Job
from tests.admin.world import (
    SCRIPT,
    act,
    charge,
    dead,
    delayed,
    family,
    hostile,
    logged,
    running,
    successful,
    told,
    url,
)
from tests.by_hand import Hand

pytestmark = pytest.mark.django_db


def status(job):
    return Job.all_objects.get(pk=job.pk).status


def test_cancel_asks_first_and_then_cancels(root):
    jobs = [charge.enqueue(number) for number in range(2)]
    asked = act(root, "cancel_selected", *jobs)
    assert asked.status_code == 200
    page = asked.content.decode()
    assert "is cancelled at once" in page
    assert [status(job) for job in jobs] == ["READY", "READY"]
    assert not logged()
    form = {
        "action": "cancel_selected",
        "confirm": "yes",
        ACTION_CHECKBOX_NAME: [str(job.pk) for job in jobs],
    }
    for key in form[ACTION_CHECKBOX_NAME]:
        assert f'name="{ACTION_CHECKBOX_NAME}" value="{key}"' in page
    done = root.post(url("changelist"), form)
    assert done.status_code == 302
    assert [status(job) for job in jobs] == ["CANCELLED", "CANCELLED"]
    assert told(done) == [("success", "2 jobs were cancelled.")]


def test_cancel_counts_what_became_of_each_and_records_what_changed(root):
    ended, runs, waits = successful(), running(), charge.enqueue()
    done = act(root, "cancel_selected", waits, runs, ended, confirm="yes", reason="too late")
    assert told(done) == [
        ("success", "1 job was cancelled."),
        ("success", "1 running job was asked to stop."),
        ("warning", "1 job had ended already."),
    ]
    assert (status(waits), status(runs), status(ended)) == ("CANCELLED", "RUNNING", "SUCCESSFUL")
    assert Job.objects.get(pk=runs.pk).cancel_reason == "too late"
    assert sorted(logged()) == sorted(
        [(str(waits.pk), "Cancelled: too late"), (str(runs.pk), "Asked to stop: too late")]
    )
    assert {entry.user.username for entry in LogEntry.objects.all()} == {"root"}


def test_cancel_without_a_reason_says_who(root):
    job = charge.enqueue()
    act(root, "cancel_selected", job, confirm="yes", reason=" \x00")
    assert Job.objects.get(pk=job.pk).cancel_reason == "cancelled by root"


def test_cancel_takes_the_tree_along(root):
    parent, child = family()
    done = act(root, "cancel_selected", parent, confirm="yes")
    assert (status(parent), status(child)) == ("RUNNING", "CANCELLED")
    assert ("success", "1 job was cancelled.") in told(done)
    assert [key for key, _text in logged()] == [str(parent.pk)]


def test_a_ticked_job_is_cancelled_though_it_no_longer_matches_the_filter(root):
    job = charge.enqueue()
    query = "?status__exact=READY"
    assert act(root, "cancel_selected", job, query=query).status_code == 200
    Hand(charge.name).take()
    done = act(root, "cancel_selected", job, query=query, confirm="yes")
    assert ("success", "1 running job was asked to stop.") in told(done)


@pytest.mark.parametrize("action", ["cancel_selected", "delete_selected", "replay_selected"])
def test_a_form_that_names_jobs_that_are_gone_does_nothing(root, action):
    job = charge.enqueue()
    gone = {ACTION_CHECKBOX_NAME: "01900000-0000-7000-8000-000000000000"}
    done = root.post(url("changelist"), {"action": action, "confirm": "yes", **gone})
    ((level, text),) = told(done)
    assert level == "error"
    assert "not there any more" in text
    assert status(job) == "READY"


def test_all_that_match_the_filter_can_be_chosen_at_once(root):
    kept = hostile.enqueue()
    jobs = [charge.enqueue() for _ in range(3)]
    done = act(
        root,
        "cancel_selected",
        jobs[0],
        query=f"?name={charge.name}",
        select_across="1",
        confirm="yes",
    )
    assert told(done) == [("success", "3 jobs were cancelled.")]
    assert status(kept) == "READY"


@pytest.mark.parametrize("action", ["cancel_selected", "run_now_selected", "delete_selected"])
def test_more_than_one_action_can_take_is_refused_as_a_whole(root, monkeypatch, action):
    monkeypatch.setattr(JobAdmin, "max_selected", 2)
    jobs = [delayed() for _ in range(3)]
    for choice in ({}, {"select_across": "1"}):
        done = act(root, action, *jobs, confirm="yes", **choice)
        level, text = told(done)[-1]
        assert level == "error"
        assert "at most 2" in text
    assert {status(job) for job in jobs} == {"READY"}
    assert not logged()


def test_run_now_ends_the_delay_at_once_and_says_where_there_was_none(root):
    waits, ready = delayed(), charge.enqueue()
    done = act(root, "run_now_selected", waits, ready)
    assert told(done) == [
        ("success", "1 job may start now."),
        ("warning", "1 job had no delay to end."),
    ]
    assert {claim.id for claim in Hand(charge.name).claim()} == {waits.pk, ready.pk}
    assert logged() == [(str(waits.pk), "Made due now")]


def test_replay_asks_first_and_then_makes_one_new_job(root):
    job = dead(7, key="value")
    asked = act(root, "replay_selected", job)
    assert "a new job is made" in asked.content.decode()
    assert Job.objects.count() == 1
    done = act(root, "replay_selected", job, confirm="yes")
    letter = DeadLetter.objects.get(job=job)
    new = letter.replayed_as
    assert (new.status, new.args, new.kwargs) == ("READY", [7], {"key": "value"})
    assert letter.replayed_by == "root"
    ((level, text),) = told(done)
    assert level == "success"
    assert url("change", new.pk) in text
    assert logged() == [(str(job.pk), f"Replayed as job {new.pk}")]


def test_replay_leaves_out_what_is_not_dead_or_was_replayed(root):
    again, fresh = dead(), dead()
    again.dead_letter.replay()
    alive = charge.enqueue()
    asked = act(root, "replay_selected", again, fresh, alive).content.decode()
    for outlook in ("was replayed already", "a new job is made", "is not dead"):
        assert outlook in asked
    done = act(root, "replay_selected", again, fresh, alive, confirm="yes")
    levels = [level for level, _text in told(done)]
    assert levels == ["success", "warning", "warning"]
    assert Job.objects.count() == 5
    assert [key for key, _text in logged()] == [str(fresh.pk)]


def test_several_replays_are_counted(root):
    jobs = [dead() for _ in range(3)]
    done = act(root, "replay_selected", *jobs, confirm="yes")
    assert told(done) == [("success", "3 new jobs were made.")]
    assert len(logged()) == 3


def test_dead_letters_are_replayed_from_their_own_list(root):
    letter = dead().dead_letter
    assert act(root, "replay_selected", letter, model="deadletter").status_code == 200
    done = act(root, "replay_selected", letter, model="deadletter", confirm="yes")
    letter.refresh_from_db()
    assert letter.replayed_by == "root"
    assert [level for level, _text in told(done)] == ["success"]
    assert logged() == [(str(letter.pk), f"Replayed as job {letter.replayed_as_id}")]
    assert LogEntry.objects.get().content_type.model == "deadletter"


def test_the_second_tab_is_told_that_the_job_was_replayed(root):
    job = dead()
    first = root.post(url("replay", job.pk), {"confirm": "yes"})
    second = root.post(url("replay", job.pk), {"confirm": "yes"})
    assert first.url == second.url == url("change", job.pk)
    assert [level for level, _text in told(first)] == ["success"]
    assert told(second)[-1] == (
        "warning",
        "1 dead letter had been replayed already: no second job was made.",
    )
    assert Job.objects.count() == 2
    assert len(logged()) == 1


@pytest.mark.django_db(transaction=True)
def test_two_tabs_at_the_same_moment_make_one_job(root):
    job = dead()
    together = threading.Barrier(2)
    answers = []

    def tab():
        client = Client()
        client.cookies = root.cookies.copy()
        together.wait(timeout=30)
        try:
            answers.append(told(client.post(url("replay", job.pk), {"confirm": "yes"})))
        finally:
            connections.close_all()

    tabs = [threading.Thread(target=tab) for _ in range(2)]
    for thread in tabs:
        thread.start()
    for thread in tabs:
        thread.join(timeout=60)
    assert sorted(answer[0][0] for answer in answers) == ["success", "warning"]
    assert Job.objects.count() == 2
    assert len(logged()) == 1


@pytest.mark.django_db(transaction=True)
def test_an_operation_and_its_record_are_one_commit(root, monkeypatch):
    job = charge.enqueue()

    def fail(*args, **kwargs):
        raise RuntimeError("the record can't be written")

    monkeypatch.setattr(LogEntry.objects, "log_actions", fail)
    monkeypatch.setattr(type(LogEntry.objects), "log_actions", fail)
    with pytest.raises(RuntimeError):
        root.post(url("cancel", job.pk), {"confirm": "yes"})
    assert status(job) == "READY"


def test_one_job_is_cancelled_from_its_page(root):
    job = charge.enqueue()
    assert "What happens" in root.get(url("cancel", job.pk)).content.decode()
    assert root.post(url("cancel", job.pk)).status_code == 200
    assert status(job) == "READY"
    done = root.post(url("cancel", job.pk), {"confirm": "yes", "reason": SCRIPT})
    assert done.url == url("change", job.pk)
    assert status(job) == "CANCELLED"
    assert Job.objects.get(pk=job.pk).cancel_reason == SCRIPT
    assert logged() == [(str(job.pk), f"Cancelled: {SCRIPT}")]
    assert SCRIPT not in root.get(url("history", job.pk)).content.decode()


def test_one_job_is_run_now_from_its_page_once_confirmed(root):
    job = delayed()
    assert root.post(url("run_now", job.pk)).status_code == 200
    done = root.post(url("run_now", job.pk), {"confirm": "yes"})
    assert told(done) == [("success", "1 job may start now.")]


@pytest.mark.parametrize(
    ("make", "buttons"),
    [
        (charge.enqueue, {"cancel"}),
        (delayed, {"cancel", "run_now"}),
        (running, {"cancel"}),
        (successful, set()),
        (dead, {"replay"}),
    ],
)
def test_a_page_offers_what_can_be_done_now(root, make, buttons):
    job = make()
    page = root.get(url("change", job.pk)).content.decode()
    every = {"cancel", "run_now", "replay"}
    assert {name for name in every if url(name, job.pk) in page} == buttons
    for name in every - buttons:
        assert "There is nothing to do." in root.get(url(name, job.pk)).content.decode()


def test_cancelling_many_costs_no_query_for_each_but_its_record(
    root, django_assert_max_num_queries
):
    jobs = list(charge.enqueue_many([((number,), {}) for number in range(40)]))
    with django_assert_max_num_queries(12):
        act(root, "cancel_selected", *jobs)
    with django_assert_max_num_queries(30 + len(jobs)):
        act(root, "cancel_selected", *jobs, confirm="yes")


def test_an_error_of_the_package_is_told_and_the_others_go_on(root, monkeypatch):
    from django_durable.exceptions import DurableError

    refused, fine = dead(), dead()
    replay = operations.replay

    def sometimes(letter, **options):
        if letter.job_id == refused.pk:
            raise DurableError("its undo job has not ended")
        return replay(letter, **options)

    monkeypatch.setattr(operations, "replay", sometimes)
    done = act(root, "replay_selected", refused, fine, confirm="yes")
    assert sorted(level for level, _text in told(done)) == ["error", "success"]
    assert connection.is_usable()
    assert [key for key, _text in logged()] == [str(fine.pk)]
