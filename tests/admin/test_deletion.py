"""Deleting jobs: whole trees that have ended, and a message for all else."""

import pytest
from django.contrib.admin.models import DELETION, LogEntry

from django_durable.admin import job_deletion
from django_durable.models import Attempt, DeadLetter, Hold, Job
from tests.admin.world import act, charge, dead, family, hand, running, successful, told, url
from tests.by_hand import bear

pytestmark = pytest.mark.django_db


def ended_family():
    charge.enqueue()
    by = hand()
    parent = by.take()
    bear(parent, charge)
    by.kill(by.take(), ValueError("child"))
    job = by.succeed(parent)
    return job, job.children.get()


@pytest.mark.parametrize("confirmation", [{"post": "yes"}, {"confirm": "yes"}])
def test_ended_jobs_are_deleted_once_confirmed(root, confirmation):
    jobs = [dead(), successful()]
    asked = act(root, "delete_selected", *jobs)
    assert asked.status_code == 200
    assert Job.objects.count() == 2
    page = asked.content.decode()
    for text in ("Jobs: 2", "Attempts: 1", "Dead letters: 1"):
        assert text in page
    done = act(root, "delete_selected", *jobs, **confirmation)
    assert told(done) == [("success", "Successfully deleted 2 jobs.")]
    for model in (Job.all_objects, Attempt.objects, DeadLetter.objects):
        assert not model.exists()
    deleted = LogEntry.objects.filter(action_flag=DELETION).values_list("object_id", flat=True)
    assert set(deleted) == {str(job.pk) for job in jobs}


def test_a_tree_goes_with_its_root(root):
    parent, child = ended_family()
    asked = act(root, "delete_selected", parent).content.decode()
    assert "Jobs: 2" in asked
    assert str(child.pk) not in asked
    act(root, "delete_selected", parent, post="yes")
    assert not Job.all_objects.exists()


@pytest.mark.parametrize("make", [charge.enqueue, running, lambda: family()[0]])
@pytest.mark.parametrize("confirmation", [{}, {"post": "yes"}])
def test_what_lives_is_named_and_stays(root, make, confirmation):
    others, job = successful(), make()
    answer = act(root, "delete_selected", job, others, **confirmation)
    page = answer.content.decode()
    assert "Cannot delete jobs" in page
    assert "has not ended" in page
    assert url("change", job.pk) in page
    assert Job.objects.filter(pk=job.pk).exists()
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("confirmation", [{}, {"post": "yes"}])
def test_what_a_live_job_has_awaited_is_named_and_stays(root, confirmation):
    awaited = successful()
    Hold.objects.create(waiter=charge.enqueue(), awaited=awaited)
    page = act(root, "delete_selected", awaited, **confirmation).content.decode()
    assert "is kept for a living job that has awaited it" in page
    assert Job.objects.filter(pk=awaited.pk).exists()


def test_a_child_is_not_deleted_alone(root):
    parent, child = ended_family()
    page = act(root, "delete_selected", child, post="yes").content.decode()
    assert "belongs to the tree of another job" in page
    act(root, "delete_selected", parent, child, post="yes")
    assert not Job.all_objects.exists()


def test_one_job_is_deleted_from_its_page(root):
    job = dead()
    assert root.get(url("delete", job.pk)).status_code == 200
    assert root.post(url("delete", job.pk), {"post": "yes"}).url == url("changelist")
    assert not Job.all_objects.exists()
    assert LogEntry.objects.get().action_flag == DELETION


def test_one_job_that_lives_is_not_deleted_from_its_page(root):
    job = charge.enqueue()
    for answer in (
        root.get(url("delete", job.pk)),
        root.post(url("delete", job.pk), {"post": "yes"}),
    ):
        assert "has not ended" in answer.content.decode()
    assert Job.objects.filter(pk=job.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_job_that_comes_to_life_in_between_is_a_message(root, monkeypatch):
    job = charge.enqueue()
    # What the page sees is one moment, what the deletion locks a later one.
    monkeypatch.setattr(job_deletion, "_forbidding", lambda ids: [])
    done = act(root, "delete_selected", job, post="yes")
    assert [level for level, _text in told(done)] == ["error"]
    single = root.post(url("delete", job.pk), {"post": "yes"})
    assert single.status_code == 302
    assert told(single)[-1][0] == "error"
    assert Job.objects.filter(pk=job.pk).exists()
    assert not LogEntry.objects.exists()


def test_asking_costs_the_same_for_small_and_large_trees(root, django_assert_num_queries):
    small = [ended_family()[0]]
    charge.enqueue()
    by = hand()
    parent = by.take()
    for _ in range(30):
        bear(parent, charge)
    for claim in by.claim(30):
        by.succeed(claim)
    large = [by.succeed(parent)]

    def count(jobs):
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as queries:
            act(root, "delete_selected", *jobs)
        return len(queries)

    count(small)
    assert count(small) == count(large)
